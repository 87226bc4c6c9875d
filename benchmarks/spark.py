"""Runs `explain` from Spark's `mapInPandas` on a local Spark, and compares it with `explain`.

`python -m benchmarks.spark` needs pyspark and Java 17; neither is part of the environment.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from lapace import Explainer, Search, datasets

ROWS = 200
SEARCH = Search(picks=("nearest",))
COLUMNS = ("valid", "distance", "income", "credit_score")
SCHEMA = "id long, valid boolean, distance double, income double, credit_score double"


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)  # of pyspark, about pandas
    from pyspark.sql import SparkSession

    loans = datasets.load("loans", rows=1250)
    classifier = loans.classifier("forest")
    explainer = Explainer(classifier, n_prototypes=2).fit(loans.train)
    instances = loans.test.head(ROWS).reset_index(drop=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "loans.lapace"))
        explainer.save(path)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()

        def nearest(batches: Iterator[Any]) -> Iterator[Any]:
            own = Explainer.load(path, classifier)  # once for each task
            for part in batches:
                known = part.set_index("id")
                found = own.explain(known, target="approved", search=SEARCH).nearest()
                yield found.frame.reset_index()[["id", *COLUMNS]].astype(
                    {"income": float, "credit_score": float}
                )

        start = perf_counter()
        rows = spark.createDataFrame(instances.rename_axis("id").reset_index()).repartition(2)
        found = rows.mapInPandas(nearest, SCHEMA).toPandas().sort_values("id")
        seconds = perf_counter() - start
        spark.stop()
    whole = explainer.explain(instances, target="approved", search=SEARCH).nearest()
    expected = whole.frame.assign(id=whole.instance)[["id", *COLUMNS]]
    same = bool((found[["id", "valid"]].to_numpy() == expected[["id", "valid"]].to_numpy()).all())
    close = bool(abs(found["distance"].to_numpy() - expected["distance"].to_numpy()).max() < 1e-9)
    print(f"{ROWS} instances in {seconds:.0f} s by Spark; as explain answers: {same and close}")
    if not (same and close):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
