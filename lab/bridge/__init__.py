"""CUDA Bridge Protocol v2: a GPU-free guest has its kernels run on a GPU by a daemon, over 256-byte records in files.

`records` are the bytes, `files` is how they are reached, `daemon` executes (backends: `cpu`, `gpu`), `module` is the
guest's side, `conform` tests other people's of either. cuda.bindings is imported by `gpu` alone.
"""
