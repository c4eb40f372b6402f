"""What rows.json holds is plain JSON."""

import json


def test_a_record_survives_json(record):
    stored = json.loads(json.dumps(record.as_json()))
    assert stored == record.as_json()
    assert stored["rows"][0]["average"] == "live"
    assert stored["chosen"][2]["at_choice_recomputed"]["statistics"] == "recomputed"
