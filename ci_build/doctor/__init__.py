"""Diagnosis of a user's machine, with the command that fixes each problem.

It uses the standard library only, because it must run where nothing is installed: `build/ci_build doctor` starts it
without `.venv`. Files of the machine and of the examined Python are read, never imported.

    examined       environment, root folder and Python under examination
    machine        system, driver, devices, GPUs
    rocm           installed ROCms
    packages       jax packages, their pins and libraries
    choice         wheel sets of an index; the set, or the published wheels, for this machine
    diagnosis      problems of the machine, each with its remedy; pure, as are the next two
    diagnosis_packages   problems of ROCm, Python and packages
    remedies       commands that fix problems
    screen         facts and problems as text
"""
