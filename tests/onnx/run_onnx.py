"""Checks every FOLDER/NAME.onnx by onnx.checker and runs it with onnxruntime on the tensor `images` of
FOLDER/NAME.images. Writes FOLDER/NAME.outputs with the tensor `output`. Exit status 4: a module is not installed."""

import pathlib
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as missing:
    print(missing)
    sys.exit(4)

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden"))
import safetensors_file


def run(path):
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    images = safetensors_file.read(path.with_suffix(".images"))["images"]
    fixed = session.get_inputs()[0].shape[0] == 1
    batches = np.split(images, len(images)) if fixed else [images]
    outputs = np.concatenate([session.run(["output"], {"input": batch})[0] for batch in batches])
    safetensors_file.write(path.with_suffix(".outputs"), {"output": outputs})


for file in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    try:
        run(file)
    except Exception as error:
        sys.exit(f"{file.name}: {error}")
