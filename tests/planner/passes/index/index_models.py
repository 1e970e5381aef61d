"""Models with drawn weights: their predictions have no meaning."""

from __future__ import annotations

import base64

import numpy as np

from treadle.planner.documents.index_model import (
    ConvolutionLayer,
    DenseLayer,
    FamilyScore,
    IndexBaseline,
    IndexModel,
    IndexNetwork,
    IndexTraining,
    ParameterBuckets,
    RankingScore,
    Weights,
)


def drawn_model(parameters: tuple[ParameterBuckets, ...], classes: int = 4, seed: int = 0) -> IndexModel:
    """A small model of these parameters."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Weights:
        values = random.normal(0, 0.3, shape).astype("<f4")
        return Weights(shape=shape, data=base64.b64encode(values.tobytes()).decode())

    def dense(inputs: int, outputs: int) -> DenseLayer:
        return DenseLayer(weights=weights(outputs, inputs), bias=weights(outputs))

    network = IndexNetwork(
        convolutions=(
            ConvolutionLayer(stride=64, weights=weights(2, 3, 32, 32), bias=weights(2)),
            ConvolutionLayer(stride=1, weights=weights(2, 2, 2, 2), bias=weights(2)),
        ),
        trace=dense(7, 3),
        embeddings=tuple(weights(each.count, 3) for each in parameters),
        classifier=(dense(6, 5), dense(5, classes)),
    )
    score = RankingScore(top_1=0.5, regret_1=0.25, regret_3=0.125, regret_10=0.0, rank_correlation=0.75)
    return IndexModel(
        version=1,
        name="drawn",
        machine="a processor",
        edges=tuple(14 + each / 4 for each in range(classes - 1)),
        centres=tuple(13.875 + each / 4 for each in range(classes)),
        parameters=parameters,
        networks=(network,),
        baseline=IndexBaseline(
            thresholds=(0.5,),
            ranked=(
                (tuple(1 for _ in parameters), tuple(0 for _ in parameters)),
                (tuple(0 for _ in parameters), tuple(1 for _ in parameters)),
            ),
        ),
        training=IndexTraining(traces=100, runs=2400, seed=23, families=("uniform",), repeat_spread=0.02, repeated=100),
        validation=(FamilyScore(family="books", traces=4, configurations=100, model=score, baseline=score),),
    )


MODEL = drawn_model(
    (
        ParameterBuckets(name="gapped-array", values=(1.0,)),
        ParameterBuckets(name="fragment_keys", values=(16.0, 64.0)),
    )
)
