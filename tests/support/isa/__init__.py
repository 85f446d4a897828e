"""Interpreter of compiled GPU kernels for CDNA3 (gfx942) and RDNA3 (gfx1100), for tests without a GPU.

Instructions mean what AMD's public documents define; comments name their sections:

- CDNA3: "AMD Instinct MI300" Instruction Set Architecture, Reference Guide.
- RDNA3: "RDNA3" Instruction Set Architecture, Reference Guide.
"""
