"""The host kernels of the reference compiler: C sources, their records, selection, and the builder
of images."""
