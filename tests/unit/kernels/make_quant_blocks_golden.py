#!/usr/bin/env python3
"""Makes quant_blocks_golden.bin: random blocks of every type,
and what the Python package gguf expands them to.

Usage: make_quant_blocks_golden.py [FILE]   (needs numpy and gguf)

Little-endian: u32 number of cases; then per case u32 type (the number in ggml), u32 blocks, the
bytes of the blocks, and the weights as f32. Scales are finite; all other bytes are anything.
"""

import struct
import sys
from pathlib import Path

import gguf
import numpy as np

# Where a block has its f16 scales.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
}


def main() -> None:
    random = np.random.default_rng(1)
    out = []
    for name, places in SCALES.items():
        kind = gguf.GGMLQuantizationType[name]
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        for count in (1, 3) if weights == 256 else (1, 7):
            blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
            for place in places:
                scales = random.integers(0, 1 << 16, count, dtype=np.uint16)
                scales[(scales & 0x7C00) == 0x7C00] ^= 0x0400
                scales[0] &= 0x83FF if count > 1 else 0xFFFF  # one subnormal scale
                blocks[:, place : place + 2] = scales.view(np.uint8).reshape(count, 2)
            values = gguf.quants.dequantize(blocks, kind).astype("<f4")
            assert np.isfinite(values).all() and values.size == count * weights
            out.append(struct.pack("<II", int(kind), count) + blocks.tobytes() + values.tobytes())
    path = (
        Path(sys.argv[1])
        if len(sys.argv) > 1
        else Path(__file__).with_name("quant_blocks_golden.bin")
    )
    path.write_bytes(struct.pack("<I", len(out)) + b"".join(out))


if __name__ == "__main__":
    main()
