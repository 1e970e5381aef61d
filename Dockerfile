# treadle with its command as the entry point. `make wheelhouse` first; then the build needs no package index:
#   docker build --network none -t treadle .
#   docker run --rm -v "$PWD:/plans" treadle profile list
FROM python:3.11-slim AS build
COPY dist/wheelhouse /wheelhouse
RUN python -m venv /opt/treadle
RUN /opt/treadle/bin/pip install --no-cache-dir --no-index --find-links /wheelhouse "treadle[all]"

FROM python:3.11-slim
COPY --from=build /opt/treadle /opt/treadle
RUN useradd --uid 1000 treadle && mkdir /plans && chown treadle /plans
USER treadle
WORKDIR /plans
ENV PATH=/opt/treadle/bin:$PATH
ENTRYPOINT ["treadle"]
CMD ["--help"]
