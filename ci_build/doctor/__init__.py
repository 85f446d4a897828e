"""Diagnosis of a user's machine, with the command that fixes each problem.

The package uses the standard library only, because it must run where nothing is
installed: `build/ci_build doctor` starts it without `.venv`. Files of the machine and
of the examined Python are read, never imported.

    examined       environment, root folder and Python of the examined system
    machine        system, driver, devices, GPUs
    rocm           installed ROCms
    packages       jax packages, their pins and libraries
    choice         wheel sets of an index; choice of a set or of published wheels for
    this machine diagnosis      problems of the machine, each with its remedy; pure,
    like the next two modules diagnosis_packages   problems of ROCm, Python and packages
    containers     commands that give GPUs to containers and to jobs of Slurm remedies
    other commands that fix problems screen         facts and problems as text
"""
