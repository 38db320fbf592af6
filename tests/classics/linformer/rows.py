"""Linformer in the tests of all families."""

LATER_CRASHES = {
    "linformer": """
model: {family: bert, ENCODER, attention: {pattern: [{name: linformer, projected_length: 8}]}}
objective: {name: masked}
""",
}
