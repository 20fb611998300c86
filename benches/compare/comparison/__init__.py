"""The comparison of muster with its peers: see ../README.md."""
