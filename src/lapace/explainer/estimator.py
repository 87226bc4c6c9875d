"""The class users call: a scikit-learn estimator that explains a classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from inspect import signature
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Never, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils import check_random_state

from lapace.arrays import Floats, Ints
from lapace.classifier import Classifier
from lapace.constraints import Constraint, System, parse_all
from lapace.errors import InputError, LapaceError, check_integer, did_you_mean, warn
from lapace.explainer import outer, storage
from lapace.explainer.fit import (
    Fitted,
    Prototype,
    fit_model,
    judge_again,
    judge_centroids,
)
from lapace.explainer.problem import (
    ANY_OTHER,
    MAX_QUERIES,
    Problem,
    Search,
    make_problem,
    read_instances,
)
from lapace.explainer.search import explain
from lapace.explainer.top_up import top_up
from lapace.paths import dense_curves
from lapace.progress import Progress, progress_line
from lapace.result import PICKS, Counterfactuals, Explanation, InstanceExplanation
from lapace.schema import Override, Schema
from lapace.table import read
from lapace.training import Recipe

__all__ = ["Explainer", "NotFittedError"]

RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None

OTHER_WORDS = {  # arguments of DiCE, and what to write here
    "features_to_vary": 'Name the columns that may not change: constraints=["fixed age, sex"].',
    "permitted_range": (
        'Write constraints=["age >= 20", "age <= 40", "education in {bachelor, master}"].'
    ),
    "total_CFs": "Ask the result for them: explain(X).best(3); Search(n_best=5) finds up to five.",
    "desired_class": (
        'Write target="approved". For "opposite" leave target out with two labels, or write '
        'target="any-other".'
    ),
    "desired_range": "Name the range as the target of lapace.classifier.binned(regressor, edges).",
}
REFITS, HELD_OUT_SEED = 5, 1000  # retrained classifiers of the report alone, and their seeds
DRAWS = 50  # draws of a verified sample before giving up


class NotFittedError(LapaceError, SklearnNotFittedError):  # type: ignore[misc]
    """A method that needs a fitted explainer was called before `fit`."""


class Explainer(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Finds counterfactual explanations of a classifier's predictions.

    A scikit-learn estimator: parameters are only stored until `fit`, and `clone` keeps the fitted
    classifier by reference.

    Args:
        classifier: Any fitted object with `predict`, or any callable on rows.
        n_prototypes: Prototypes per label; a label with few rows gets fewer.
        n_latent: For research: dimensions of the latent space; None for a rule.
        recipe: For research: `default`, `paper` for the paper's training, or a `Recipe`.
        rules: Constraints that every counterfactual of every call must satisfy.
        learn_rules: Whether to add rules that every training row satisfies, such as
            `mean <= worst`: `rules_` lists them. To leave some out, say which by their texts,
            `{"mean <= worst": False}`. The paper's recipe learns none.
        schema: A `Schema`, overrides for some columns, or a file of them, as `Schema.to_toml`
            writes it; by default all is inferred.
        device: `cpu`, `cuda`, or None for the best available.
        random_state: Seed of everything random; None for another one at every fit, or a generator
            of numpy's that draws it.

    Attributes:
        classes_: The classifier's labels.
        feature_names_in_: The columns' names.
        n_features_in_: How many columns there are.
        schema_: What the columns are.
        rules_: The rules learned from the table, each with its support.
        prototypes_: Every centroid, decoded and judged by the classifier.
        report_: What was learned, what to distrust, and whether it passes.
        history_: The loss and its terms during training, by name.
        id_column_: The column of tables that identifies their rows, if its file named one.

    Examples:
        >>> from lapace import Explainer
        >>> rng = np.random.default_rng(0)
        >>> table = [{"income": int(i), "debt": int(d)} for i, d in rng.integers(0, 99, (400, 2))]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=2).fit(table)
        >>> explanation = explainer.explain([{"income": 20, "debt": 60}])
        >>> explanation.status
        ('answered',)
    """

    def __init__(
        self,
        classifier: Any,
        *,
        n_prototypes: int = 5,
        n_latent: int | None = None,
        recipe: Literal["default", "paper"] | Recipe = "default",
        rules: Sequence[str | Constraint] = (),
        learn_rules: bool | Mapping[str, bool] = True,
        schema: Schema | Mapping[str, Override] | str | Path | None = None,
        device: str | None = None,
        random_state: RandomState = 0,
    ) -> None:
        self.classifier = classifier
        self.n_prototypes = n_prototypes
        self.n_latent = n_latent
        self.recipe = recipe
        self.rules = rules
        self.learn_rules = learn_rules
        self.schema = schema
        self.device = device
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002  scikit-learn's
        """The constructor's arguments by name; those of the classifier are not opened."""
        params: dict[str, Any] = super().get_params(deep=False)
        return params

    def __sklearn_clone__(self) -> Explainer:
        params = self.get_params()
        classifier = params.pop("classifier")
        copied = {name: clone(value, safe=False) for name, value in params.items()}
        return type(self)(classifier, **copied)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # missing values are kept or filled along the path
        return tags

    def __repr__(self, **_: Any) -> str:
        if not hasattr(self, "fitted_"):
            settings = f"n_prototypes={self.n_prototypes}, random_state={self.random_state}"
            return f"Explainer({settings}), not fitted"
        labels, count = " or ".join(map(str, self.fitted_.labels)), len(self.prototypes_)
        return f"Explainer of {labels}: {count} prototypes, {self.report_.verdict}"

    def _repr_html_(self) -> str:
        """The report where there is one, for notebooks."""
        if hasattr(self, "fitted_"):
            return self.report_._repr_html_()
        return f"<pre>{escape(repr(self))}</pre>"

    # -- fit --------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        retrain: outer.Retrain | None = None,
        progress: Progress | Literal[False] | None = None,
    ) -> Explainer:
        """Learns from a table, labelled by the classifier.

        Args:
            X: Features only, in the columns the classifier takes.
            y: True labels, for the classifier's accuracy in the report and for `retrain`; nothing
                else learns from them.
            retrain: A function that trains such a classifier, called as `retrain(X, y,
                random_state)` with ten bootstrap samples of the rows. The votes of these
                classifiers then update the estimate of survival. They are not saved.
            progress: Called as `progress("training", done, total)`. By default a line is printed
                on standard error, on a terminal or in a notebook, once five seconds have passed;
                False for none.
        """
        start = perf_counter()
        n_prototypes = check_integer("n_prototypes", self.n_prototypes)
        n_latent = None if self.n_latent is None else check_integer("n_latent", self.n_latent)
        random_state = _as_seed(self.random_state)
        recipe, device = Recipe.of(self.recipe), _device(self.device)
        table = read(X)
        schema = self.schema
        if not isinstance(schema, Schema):
            schema = Schema.infer(table, schema, labels=_column(y))
        reading = schema.read(table).checked()
        schema, cells = reading.schema, reading.cells  # with categories too rare to be proposed
        declared = parse_all(self.rules)
        system = System.of(declared, schema)  # refuses rules that cannot hold before training
        outer.warn_of_differences(schema, cells)
        wanted = False if recipe.follows_paper else self.learn_rules
        schema, learned = outer.learn_rules(schema, cells, wanted)
        found = [rule.constraint for rule in learned if rule.constraint is not None]
        relations = learned
        if wanted is False and not recipe.follows_paper:  # judged by the report all the same
            relations = outer.learn_rules(schema, cells)[1]
        more = [constraint for constraint in found if not system.implies(constraint)]
        rules = System.of((*declared, *more), schema).constraints
        learned = tuple(r for r in learned if r.constraint is None or r.constraint in rules)
        classifier = Classifier(self.classifier, schema)
        codes = classifier.fit_labels(cells)
        outer.warn_of_leaks(schema, cells, classifier.labels, codes)
        if retrain is not None and (y is None or not callable(retrain)):
            raise InputError(
                "retrain is a function called as retrain(X, y, random_state), and needs y: "
                "fit(X, y, retrain=function)."
            )
        refits: tuple[Classifier, ...] = ()
        accuracy = None if y is None else _accuracy(y, classifier.labels, codes)
        parts = outer.split(codes, len(classifier.labels), random_state=random_state)
        rows, made_up = cells[parts.train], None
        if recipe.enough and schema.shape is None:
            made_up = top_up(
                schema,
                classifier,
                rows,
                codes[parts.train],
                enough=recipe.enough,
                random_state=random_state,
                rules=rules,
            )
        trained = fit_model(
            schema,
            rows,
            codes[parts.train],
            n_labels=len(classifier.labels),
            n_prototypes=n_prototypes,
            n_latent=n_latent,
            recipe=recipe,
            device=device,
            random_state=random_state,
            progress=(progress_line() if progress is None else progress) or None,
            made_up=made_up,
        )
        prototypes = judge_centroids(trained, classifier, rows)
        coded = trained.decoder.schema
        survival = outer.Survival.fit(
            classifier.labels,
            coded,
            cells,
            codes,
            lambda rows: classifier.query(rows).scores,
            random_state=random_state,
        )
        if retrain is not None:
            arguments = (retrain, classifier, cells, y)
            again = outer.retrained_classifiers(*arguments, random_state)
            survival = replace(survival, retrained=again)
            refits = outer.retrained_classifiers(*arguments, random_state + HELD_OUT_SEED, REFITS)
        fitted = Fitted(
            schema=coded,
            labels=classifier.labels,
            rules=rules,
            decoder=trained.decoder,
            prototypes=prototypes,
            recipe=trained.recipe,
            history=trained.history,
            history_names=trained.history_names,
            survival=survival,
            learned=learned,
        )
        self._report = outer.make_report(
            fitted,
            classifier.with_fresh_count(),
            cells,
            codes,
            parts,
            n_prototypes=n_prototypes,
            n_queries=classifier.n_queries,
            seconds=perf_counter() - start,
            accuracy=accuracy,
            random_state=random_state,
            relations=relations,
            refits=refits,
        )
        self.fitted_, self.classifier_, self._seed = fitted, classifier, random_state
        self.id_column_: str | None = None
        return self

    def _fitted(self) -> Fitted:
        if not hasattr(self, "fitted_"):
            raise NotFittedError("This explainer is not fitted yet. Call fit(X) first.")
        fitted: Fitted = self.fitted_
        return fitted

    @property
    def classes_(self) -> NDArray[np.object_]:
        """The classifier's labels."""
        return np.array(self._fitted().labels, dtype=object)

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The columns' names."""
        return np.array(self._fitted().schema.names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """The number of columns."""
        return len(self._fitted().schema.features)

    @property
    def schema_(self) -> Schema:
        """The columns, as fitted."""
        return self._fitted().schema

    @property
    def report_(self) -> outer.Report:
        """The fit report: whether the explainer passes, and what to distrust."""
        self._fitted()
        return self._report

    @property
    def rules_(self) -> tuple[outer.LearnedRule, ...]:
        """The rules learned from the training table, beside those given; each with its support."""
        return self._fitted().learned

    @property
    def prototypes_(self) -> tuple[Prototype, ...]:
        """Every centroid, decoded and judged."""
        return self._fitted().prototypes

    @property
    def history_(self) -> dict[str, Floats]:
        """The loss and its terms during training, by name."""
        fitted = self._fitted()
        return dict(zip(fitted.history_names, fitted.history.T, strict=True))

    # -- explain ----------------------------------------------------------------------------------

    def labels(self, X: Any) -> list[Any]:
        """Returns the label the classifier predicts for each instance; None if it is malformed.

        Args:
            X: Instances, as for `explain`.
        """
        fitted = self._fitted()
        classifier, known = self.classifier_.with_fresh_count(), fitted.prototypes[0].cells[None]
        instances = read_instances(X, fitted.schema, classifier, ANY_OTHER, known_row=known)
        return [None if code < 0 else fitted.labels[code] for code in instances.label_code]

    def explain(
        self,
        X: Any,
        *,
        target: Any = None,
        constraints: Sequence[str | Constraint] = (),
        costs: Mapping[str, float] | None = None,
        confidence: float | None = None,
        plausibility: float | None = None,
        candidates: Any = None,
        search: Search | None = None,
        progress: Progress | None = None,
        **unknown: Never,
    ) -> Explanation:
        """Finds counterfactuals for every instance of a table.

        Args:
            X: Rows in the training table's columns; other columns are ignored.
            target: The label wanted, one label per instance, or `"any-other"`; with two classes it
                may be left out.
            constraints: What every counterfactual must satisfy, beside the explainer's rules.
            costs: How hard a change is, for some columns: its weight in distance and effort; 1 by
                default, infinity holds the column fixed.
            confidence: The least probability of the target a counterfactual must have.
            plausibility: How usual a counterfactual must be: the least share of the training rows
                of the target that are less dense, 0.05 for instance.
            candidates: Rows to be considered too and made minimal: an earlier explanation of the
                same instances, or a table with a column `instance` (its id, or its position).
            search: How to search, where the defaults will not do.
            progress: Called as `progress("explaining", done, total)`.
            **unknown: None; words of other libraries get an error that says what to write.
        """
        if unknown:
            raise TypeError(_unknown_argument(next(iter(unknown))))
        fitted = self._fitted()
        problem = make_problem(
            fitted,
            self.classifier_.with_fresh_count(),
            X,
            target=target,
            constraints=constraints,
            costs=costs,
            confidence=confidence,
            plausibility=plausibility,
            candidates=candidates,
            search=search,
        )
        for wanted in self._targets(problem):
            if self._report.verdict_for(wanted) == "fails":
                warn(
                    f"The report of this explainer fails for target {wanted!r}, so its "
                    "counterfactuals may be of little use: "
                    f"{self._report.advice_for(wanted)[0]} print(explainer.report_) says more."
                )
        return explain(problem, progress)

    def _targets(self, problem: Problem) -> list[Any]:
        """Returns the targets of a problem's instances, each once."""
        codes = np.unique(problem.instances.target_code[problem.tried]).tolist()
        return [ANY_OTHER if code < 0 else problem.fitted.labels[code] for code in codes]

    def why_not(
        self,
        explanation: Explanation,
        *,
        max_queries: int = MAX_QUERIES,
        relax_rules: bool = False,
    ) -> Explanation:
        """Finds, for instances without a counterfactual, the smallest relaxation that gives one.

        Where no row is feasible, a smallest contradictory set of constraints and how far each would
        have to move; where rows are feasible but none was found valid, the smallest set of
        constraints without which the same search succeeds.

        Args:
            explanation: What this explainer's `explain` returned.
            max_queries: Rows the classifier may be queried about; where the budget ends the
                search, the reasons found so far are given and say that they may not be smallest.
            relax_rules: Whether the explainer's own rules may be among what is relaxed. By default
                they stand, and only constraints of the query are.

        Returns:
            The same explanation with `why_not` filled, by position of the instance.
        """
        fitted, most = self._fitted(), check_integer("max_queries", max_queries, 0, 2**62)
        return outer.with_why_not(
            fitted,
            self.classifier_.with_fresh_count(),
            explanation,
            most,
            relax_rules=relax_rules,
        )

    def counterfactuals(
        self,
        X: Any,
        *,
        target: Any = None,
        constraints: Sequence[str | Constraint] = (),
        pick: str = "nearest",
    ) -> Counterfactuals:
        """The protocol shared with the baselines: `explain`, and one of its picks."""
        if pick not in PICKS:
            raise InputError(f"There is no pick '{pick}'. There are: {', '.join(PICKS)}.")
        search = Search(picks=(pick,), n_best=1)
        explanation = self.explain(X, target=target, constraints=constraints, search=search)
        rows: Counterfactuals = getattr(explanation, pick)()
        return rows

    # -- the latent space -------------------------------------------------------------------------

    def latent_map(
        self,
        instance: InstanceExplanation | None = None,
        *,
        points: int = 400,
        random_state: RandomState = 0,
    ) -> dict[str, NDArray[Any]]:
        """Latent space as plain arrays: what `plots.latent_map` draws.

        Args:
            instance: One instance of an explanation, to be placed on the map.
            points: Latent points to draw for each label.
            random_state: Seed of the draw.

        Returns:
            `labels`; `z` and `label` of the points; `prototype_z`, `prototype_label`,
            `prototype_number` and `prototype_valid`; with an instance `instance_z`, and for images
            `path_z`, points on the way to each prototype. `label` and `prototype_label` are
            positions among `labels`.
        """
        fitted = self._fitted()
        decoder, prototypes = fitted.decoder, fitted.prototypes
        generator = torch.Generator().manual_seed(_as_seed(random_state))
        codes = [k for k, mixture in enumerate(decoder.mixtures) if len(mixture.means)]
        drawn = [decoder.sampler(k).sample(points, generator) for k in codes]
        record: dict[str, NDArray[Any]] = {
            "labels": self.classes_,
            "z": torch.cat(drawn).numpy(),  # (labels * points, h)
            "label": np.repeat(codes, points),
            "prototype_z": np.stack([p.z for p in prototypes]),  # (prototypes, h)
            "prototype_label": np.array([p.code for p in prototypes]),
            "prototype_number": np.array([p.number for p in prototypes]),
            "prototype_valid": np.array([p.valid for p in prototypes]),
        }
        if instance is not None:
            whole, row = instance.explanation, instance.position
            code = np.array([fitted.labels.index(whole.label[row])])
            encoded = decoder.encode_instances(whole.schema, whole.instances[[row]], code)
            record["instance_z"] = encoded.z[0].cpu().numpy()  # (h,)
            if whole.schema.shape is not None and not decoder.follows_paper:
                end = torch.as_tensor(record["prototype_z"], device=decoder.device)
                start, code = encoded.z.expand(len(end), -1), record["prototype_label"]
                record["path_z"] = dense_curves(decoder, start, end, code).cpu().numpy()
        return record

    def sample(
        self, label: Any, n: int, *, verified: bool = False, random_state: RandomState = 0
    ) -> Any:
        """Draws synthetic rows of a label, as a table like the training table.

        Args:
            label: The label to draw for.
            n: How many rows.
            verified: Redraw rows that the classifier labels otherwise. Those that stay so are left
                out, with a warning that counts them.
            random_state: Seed of the draw.
        """
        fitted = self._fitted()
        code, n = self.classifier_.code(label), check_integer("n", n, 0)
        if not len(fitted.decoder.mixtures[code].means):
            raise InputError(f"Label {label!r} had too few training rows to draw from.")
        seed = _as_seed(random_state)
        cells = fitted.decoder.sample(code, n, seed)
        for draw in range(1, DRAWS + 1 if verified else 1):
            right = self.classifier_.predict(cells) == code
            if right.all():
                break
            if draw == DRAWS:
                warn(
                    f"After {DRAWS} draws {n - right.sum()} of {n} rows are still not labelled "
                    f"{label!r}: {right.sum()} are returned. See the report, or draw with "
                    "verified=False."
                )
                cells = cells[right]
                break
            cells[~right] = fitted.decoder.sample(code, n - right.sum(), seed + 7919 * draw)
        return fitted.schema.frame(cells)

    # -- save and load ----------------------------------------------------------------------------

    def save(
        self,
        path: str | Path,
        *,
        classifier: str | PathLike[str] | None = None,
        id_column: str | None = None,
    ) -> None:
        """Writes everything but the classifier into one file, whole or not at all.

        Args:
            path: The file; by convention it ends in `.lapace`.
            classifier: The classifier's file. If it is a skops or ONNX file in the same folder,
                `load` opens it by itself, as long as it has not changed.
            id_column: The column of tables that identifies their rows, for the command line and
                `batch`; by default `id_column_`.
        """
        fitted = self._fitted()
        if fitted.survival.retrained:
            warn(
                "The classifiers that retrain made are not saved: a loaded explainer estimates "
                "survival without them."
            )
        wanted = self.learn_rules
        settings = {
            "n_prototypes": int(self.n_prototypes),
            "n_latent": None if self.n_latent is None else int(self.n_latent),
            "random_state": self._seed,
            "learn_rules": wanted if isinstance(wanted, bool) else dict(wanted),
        }
        reference = None
        if classifier is not None:
            reference = outer.refer_to(path, classifier, self.classifier)
        id_column = self.id_column_ if id_column is None else id_column
        storage.save(path, fitted, self.report_, settings, reference, id_column)

    @classmethod
    def load(
        cls,
        path: str | Path,
        classifier: Any = None,
        *,
        trust: Sequence[str] = (),
        device: str | None = None,
    ) -> Explainer:
        """Reads a saved explainer and attaches its classifier.

        The prototypes are judged again: a `CentroidWarning` names those the classifier no longer
        accepts, and no path leads to them.

        Args:
            path: The file.
            classifier: The classifier it was fitted for; None to open the file it refers to.
            trust: Types in that file that may be built, as in `loaders.load_classifier`.
            device: As in the constructor.
        """
        stored = storage.load(path, _device(device))
        fitted = stored.fitted
        if classifier is None:
            classifier = outer.open_referred(Path(path), stored.reference, trust)
        explainer = cls(
            classifier,
            recipe=fitted.recipe,
            rules=fitted.declared,
            schema=fitted.schema,
            device=device,
            **stored.settings,
        )
        explainer.classifier_ = Classifier(classifier, fitted.schema, fitted.labels)
        explainer.fitted_ = judge_again(fitted, explainer.classifier_)
        explainer._report, explainer.id_column_ = stored.report, stored.id_column
        explainer._seed = stored.settings["random_state"]
        return explainer


def _unknown_argument(name: str) -> str:
    """Says that `explain` has no such argument, and what to write instead where that is known."""
    said = f"explain() got an unexpected keyword argument '{name}'."
    if name in OTHER_WORDS:
        return f"{said} {OTHER_WORDS[name]}"
    return said + did_you_mean(name, [*signature(Explainer.explain).parameters][2:-1])


def _as_seed(random_state: RandomState) -> int:
    """Returns a seed: the number given, or one drawn as by scikit-learn's `check_random_state`."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return check_integer("random_state", random_state, 0)


def _column(y: Any) -> list[Any] | None:
    """Labels as a list; None where there are none, or more than one per row."""
    labels = None if y is None else np.asarray(y, dtype=object)
    return labels.tolist() if labels is not None and labels.ndim == 1 else None


def _accuracy(y: Any, labels: Sequence[Any], codes: Ints) -> float | None:
    """Returns how often the classifier gives rows their true label; None if it knows none."""
    true = np.asarray(y, dtype=object).ravel()
    if len(true) != len(codes):
        raise InputError(f"y has {len(true)} labels for {len(codes)} rows; give one per row.")
    place = {label: code for code, label in enumerate(labels)}
    true_codes = np.array([place.get(value, -1) for value in true.tolist()], dtype=np.int64)
    if (true_codes < 0).all():
        warn("No label of y is one the classifier predicts: its accuracy is not reported.")
        return None
    return float((true_codes == codes).mean())


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"There is no device '{name}'. Choose cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device here. Choose device='cpu', or leave it out.")
    return device
