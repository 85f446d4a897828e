"""Arguments of setuptools that pyproject.toml cannot contain.

The version and the commands of pep517/backend.py.
"""

from backend import arguments
from setuptools import setup

setup(**arguments())
