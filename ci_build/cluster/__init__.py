"""Tasks on the machines of a Dask cluster: client, scheduler, workers and the functions that they run."""
