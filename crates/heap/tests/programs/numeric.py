"""numeric.py: NumPy's own work, and children of every kind, below the preload library."""
import hashlib
import multiprocessing
import os
import subprocess
import sys

import numpy as np


def work(seed):
    random = np.random.default_rng(seed)
    a, b = random.random((300, 400)), random.random((400, 300))
    parts = [a @ b, np.fft.fft2(a).real, np.sort(a.ravel()), np.linalg.svd(a[:100, :100])[1], np.cumsum(b, axis=0)]
    parts += [np.concatenate([a.T, b]), np.zeros((500, 500)), np.tile(a, (3, 3)) ** 2, a[::3, ::2].copy()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(np.round(part, 6) + 0.0).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    kept = np.arange(1 << 20)
    print(work(1))
    for kind in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(kind).Pool(2) as pool:
            print(*pool.map(work, range(4)))
    print(subprocess.run([sys.executable, "-c", "print(len(bytearray(1 << 20)))"], capture_output=True).stdout)
    child = os.fork()
    if child == 0:
        os._exit(0 if int(kept.sum()) == (1 << 20) * ((1 << 20) - 1) // 2 else 1)
    kept[:] = 0
    print(os.waitpid(child, 0)[1], work(2))
