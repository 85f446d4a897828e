"""What is wrong on a user's machine, and the command that mends it.

Nothing here needs more than the standard library, because it must run where nothing is installed: `build/ci_build
doctor` comes here without making `.venv`. Files of the machine and of the examined Python are read, never imported.

    surroundings   the environment, the root folder and the Python that is examined
    machine        system, driver, devices, GPUs
    rocm           which ROCm is where
    packages       jax packages, their pins, their libraries
    sets           which wheel sets an index offers
    choice         which of them, or which published wheels, belong on this machine
    diagnosis      facts about the machine -> problems, each with its remedy; pure, as are the next two
    diagnosis_packages   the same for ROCm, Python and packages
    remedies       the commands that mend things
    screen         facts and problems -> what a person reads
"""
