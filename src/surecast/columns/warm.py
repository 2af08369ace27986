"""`python -m surecast.columns.warm`: compile every kernel into numba's cache on disk."""

from surecast.columns import kernels

if __name__ == "__main__":
    kernels.warm()
