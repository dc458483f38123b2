"""Leave MXNet: a net as an ONNX file or as a PyTorch module, run and compared."""
