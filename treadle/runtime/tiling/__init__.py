"""What runs tilings: an interpreter of tiles that counts bytes, DTensor, Dask."""
