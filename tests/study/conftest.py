"""Shared fixtures: defined here, they run once per session instead of once per importing file."""

from tests.study.studies.small_studies import finished_studies as finished_studies
