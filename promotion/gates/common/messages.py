"""Messages of the loader and of XLA by which gates recognise a machine without usable GPUs."""

from __future__ import annotations

import re

LOADER_SENTENCE = re.compile(r"(jax-rocm\d+-pjrt \S+ cannot use ROCm: .+)")
"""Warning of the loader in `pjrt/payload` when it cannot use ROCm."""
NO_DEVICE = re.compile(r"FAILED_PRECONDITION: No visible GPU devices\.?")
"""XLA's error when every library is loaded and there is no GPU."""
