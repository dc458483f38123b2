# A server without a screen and without a compiler: `make wheel`, then `docker build -t gluon-amp .`.
# `make container` runs these lines without Docker.
FROM debian:13-slim
RUN apt-get update -q && apt-get install -q -y --no-install-recommends \
    python3-venv libgomp1 libquadmath0 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/gluon_amp
ENV PATH=/opt/gluon_amp/bin:$PATH
COPY constraints.txt dist/gluon_amp-*-manylinux*.whl /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/gluon_amp-*.whl)[cpu,gluoncv,data]"
# Debian 13 has Python 3.13, for which the metadata of these two ask for a numpy that has no wheel
RUN pip install --no-cache-dir --no-deps mxnet==1.9.1 gluoncv==0.10.5.post0
RUN gluon-amp build
CMD gluon-amp doctor
