"""The nineteen claims, in order. May import everything of the claims but how they are shown."""

from emabank.study.report.claims import batchnorm, dynamics, generalization, noise, predictions, variants
from emabank.study.report.claims.cost import overhead_claim
from emabank.study.report.claims.question import Question, answer
from emabank.study.report.evidence import Evidence
from emabank.study.report.verdict import Claim

_QUESTIONS: tuple[Question, ...] = (
    *dynamics.QUESTIONS,
    *variants.QUESTIONS,
    *batchnorm.QUESTIONS,
    *noise.QUESTIONS,
    *predictions.QUESTIONS,
    *generalization.QUESTIONS,
)


def claims(evidence: Evidence) -> list[Claim]:
    """What became of each of the nineteen claims, 1 to 19.

    >>> [claim.number for claim in claims(Evidence())] == list(range(1, 20))
    True
    >>> {claim.verdict for claim in claims(Evidence())}
    {'not run'}
    """
    answered = [*(answer(question, evidence) for question in _QUESTIONS), overhead_claim(evidence)]
    return sorted(answered, key=lambda claim: claim.number)
