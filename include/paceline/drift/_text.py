"""Tests whether a column of free text has drifted.

Called by ``paceline.drift._features``. A classifier tries to distinguish the windows by n-grams of
characters; texts that repeat often are compared like categories.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.drift._categories import align, merge_rare
from paceline.drift._dependence import Units
from paceline.drift._joint import FEWEST, MAX_ROWS, distinguish
from paceline.drift._settings import DriftSettings
from paceline.drift._statistics import TestResult, chi_squared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

# Characters of a text that are compared.
MAX_CHARACTERS = 500
# If more texts of a window repeat, the classifier compares each text once, at least this number in each window.
_REPEATED_SHARE, _FEWEST_DISTINCT = 0.05, 100
# A reason names at most three words whose share of texts changed at least this much, so none is of a few texts only.
_NAMED, _LEAST_CHANGE = 3, 0.02


def compare_texts(
    reference: pd.Series[Any],
    current: pd.Series[Any],
    settings: DriftSettings,
) -> tuple[str, TestResult, str] | None:
    """Return the test of two windows of texts, its result, and the words whose shares changed most.

    ``None`` means that the windows have too few texts. At most 5,000
    texts of each window are compared, and their first 500 characters. All digits are equal, because numbers, dates and
    times in texts differ in every window.

    The classifier is a multinomial naive Bayes model of the n-grams of three to five characters in each word. The
    statistic is its AUC on texts from which it has not learned, and the effect is 2 AUC - 1. Equal texts are in
    the same part of the rows, and count once if many texts repeat, because the classifier would recognise them. Texts
    that are frequent enough for the chi-squared test are therefore compared as categories, too. The result is that of
    the test with the larger effect among the significant ones, with a p-value that is corrected for two tests.

    >>> import pandas as pd
    >>> windows = [
    ...     pd.Series([f"{subject} of {chr(97 + n % 26)}{chr(97 + n // 26)} in town" for n in range(600)])
    ...     for subject in ("late order", "refund")
    ... ]
    >>> test, result, words = compare_texts(*windows, DriftSettings())
    >>> test, words.split(", ")[0]
    ('domain classifier', '"late" in 0% instead of 100%')
    """
    import numpy as np
    import pandas as pd
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.naive_bayes import MultinomialNB

    rng = np.random.default_rng(0)
    windows = [
        [_prepare(value) for value in series.iloc[rng.permutation(len(series))[:MAX_ROWS]]]
        for series in (reference, current)
    ]
    counts = [Counter(texts) for texts in windows]
    results: list[tuple[str, TestResult]] = []
    compared = windows
    if any(len(count) < (1 - _REPEATED_SHARE) * len(texts) for count, texts in zip(counts, windows, strict=True)):
        size = min(map(len, windows))  # in a larger sample, more texts repeat
        compared = [list(dict.fromkeys(texts[:size])) for texts in windows]
    enough = min(map(len, windows)) >= FEWEST * settings.minimum_samples
    if enough and min(map(len, compared)) >= _FEWEST_DISTINCT:
        texts = pd.Series(compared[0] + compared[1])
        n_grams = HashingVectorizer(
            analyzer="char_wb", ngram_range=(3, 5), lowercase=False, alternate_sign=False, n_features=2**18
        ).fit_transform(texts)
        labels = np.repeat([0, 1], [len(window) for window in compared])
        same = Units(pd.factorize(texts)[0])
        auc, p_value = distinguish(n_grams, labels, same, MultinomialNB(alpha=0.1, fit_prior=False))
        results.append(("domain classifier", TestResult(auc, p_value, max(0.0, 2.0 * auc - 1.0))))
    before, after, _ = merge_rare(*align(*counts))
    if len(before) > 1:
        results.append(("chi-squared", chi_squared(before.tolist(), after.tolist())))
    if not results:
        return None
    number = len(results)
    results = [(test, TestResult(one.statistic, min(1.0, number * one.p_value), one.effect)) for test, one in results]
    test, result = max(results, key=lambda one: (one[1].p_value <= settings.significance, one[1].effect))
    return test, result, _name_words(windows)


def _prepare(value: object) -> str:
    return " ".join(re.sub(r"\d+", "0", str(value)[:MAX_CHARACTERS]).split())


def _name_words(windows: Sequence[Sequence[str]]) -> str:
    """Name the words, or sequences of characters, whose share of texts differs most between the windows."""
    import numpy as np
    from sklearn.feature_extraction.text import CountVectorizer

    for form in ({"analyzer": "word"}, {"analyzer": "char", "ngram_range": (3, 3)}):
        vectorizer = CountVectorizer(binary=True, lowercase=False, **form)
        try:
            found = vectorizer.fit_transform([*windows[0], *windows[1]])
        except ValueError:  # no text has a word
            continue
        before, after = (
            np.asarray(rows.mean(axis=0))[0] for rows in (found[: len(windows[0])], found[len(windows[0]) :])
        )
        share = (before + after) / 2
        change = (after - before) / np.sqrt(share * (1 - share) + 1e-9)
        change[np.abs(after - before) < _LEAST_CHANGE] = 0
        names = vectorizer.get_feature_names_out()
        words = [
            f'"{names[index][:20]}" in {after[index]:.0%} instead of {before[index]:.0%}'
            for index in np.argsort(-np.abs(change), kind="stable")[:_NAMED]
            if change[index]
        ]
        if words:
            return f"{', '.join(words)} of the texts"
    return ""
