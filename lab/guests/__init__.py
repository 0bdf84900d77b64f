"""Programs that scenarios run: real clients that check themselves and print figures as `hooklab: NAME=NUMBER`.

They import nothing else of this package, so that a process under test holds no more of it than its own file.
"""
