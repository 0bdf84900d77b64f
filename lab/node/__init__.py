"""A fake GPU node: the server, the node file, planned faults and what a reader sees of them."""
