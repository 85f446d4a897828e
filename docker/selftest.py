"""Self-test inside a runtime image: jax finds AMD GPUs, and their results are correct.

`selftest.py --no-gpu` only checks that jax and numpy can be imported, for machines
without a GPU.
"""

import sys


def main() -> None:
    """Run the self-test; exit with a message if it fails."""
    import jax
    import numpy

    print(f"Python {sys.version.split()[0]}, jax {jax.__version__}")
    if sys.argv[1:] == ["--no-gpu"]:
        return
    devices = jax.devices()
    # Such as "PJRT C API\nrocm 70200".
    versions = {" ".join(device.client.platform_version.split()) for device in devices}
    print(
        f"{len(devices)} devices: {devices[0].device_kind}, {'; '.join(sorted(versions))}"
    )
    if {device.platform for device in devices} != {"gpu"} or not all(
        "rocm" in text.lower() for text in versions
    ):
        sys.exit("jax does not use ROCm.")
    for device in devices:
        with jax.default_device(device):
            left = numpy.arange(256 * 128, dtype=numpy.float32).reshape(256, 128) % 7
            right = numpy.arange(128 * 64, dtype=numpy.float32).reshape(128, 64) % 5
            # Integers this small are exact in float32 in any order of addition.
            if not numpy.array_equal(
                jax.jit(lambda a, b: a @ b)(left, right), left @ right
            ):
                sys.exit(f"{device} computes wrong products.")
    print("all devices compute correct products")


if __name__ == "__main__":
    main()
