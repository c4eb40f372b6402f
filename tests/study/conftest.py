"""Fixtures that several files share: defined here, a session makes them once, and not once a file that imports them."""

from tests.study.studies.small_studies import finished_studies as finished_studies
