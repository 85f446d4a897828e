"""Tasks on the machines of a Dask cluster.

Client, scheduler, workers and the functions that they run.
"""
