"""JAX's ROCm plugin on AMD's own HIP runtime, which runs on the virtual GPU's HSA runtime.

    pip install --target FOLDER jax==0.10.2 jax-rocm7-plugin==0.10.2 jax-rocm7-pjrt==0.10.2
    python op_tests/strangers/run_jax.py FOLDER

The loader finds AMD's HIP runtime, rocBLAS, hipBLASLt, rocRAND and comgr of ROCm 7. Libraries that
the plugin links but the program does not need are stand-ins, whose functions all return 0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rfops.jit import vgpu_hsa_folder
from rfops.jit.build import toolchain

# A library, and how the names of its functions begin.
_STAND_INS = {
    "libMIOpen.so.1": "miopen",
    "libhipfft.so.0": "hipfft",
    "librccl.so.1": "nccl",
    "librocprofiler-sdk.so.1": "rocprofiler_",
    "librocm_smi64.so.1": "rsmi_",
}
_PROGRAM = Path(__file__).with_name("jax_program.py")


def stand_ins(plugin: Path, folder: Path) -> None:
    """Libraries with the functions that JAX's libraries want of them."""
    names: set[str] = set()
    for file in plugin.rglob("*.so"):
        words = ["nm", "--dynamic", "--undefined-only", str(file)]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        names |= {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    for library, prefix in _STAND_INS.items():
        functions = sorted(name for name in names if re.match(rf"{prefix}\w", name))
        assert functions, f"nothing of {library} is asked for"
        source = folder / f"{prefix}.c"
        source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in functions))
        linking = ("-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library))
        words = [*toolchain.host_toolchain().argv, "-x", "c", str(source), *linking]
        subprocess.run(words, check=True)


def main() -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with jax and its ROCm plugin")
    parser.add_argument("--arch", default="gfx942")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rfops-jax-") as name:
        stand_ins(options.folder, Path(name))
        libraries = str(vgpu_hsa_folder()), name, os.environ.get("LD_LIBRARY_PATH")
        env = os.environ | {
            "PYTHONPATH": str(options.folder),
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "RFOPS_VGPU_ARCH": options.arch,
        }
        # XLA would time many variants of each matrix multiplication.
        env.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
        return subprocess.run([sys.executable, str(_PROGRAM)], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
