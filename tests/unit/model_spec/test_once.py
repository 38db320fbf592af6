"""What is found once for each object."""

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.once import once_for_each


class _Asked:
    pass


def test_it_is_found_once_for_each_object_and_let_go_with_it() -> None:
    asked = []

    @once_for_each
    def number(of: _Asked) -> int:
        asked.append(type(of))
        return len(asked)

    one, other = _Asked(), _Asked()
    assert [number(one), number(other), number(one)] == [1, 2, 1]
    del one
    again = _Asked()  # which may have the number that `one` had
    assert number(again) == 3


def test_a_model_that_was_changed_has_parameters_of_its_own() -> None:
    model = load(RunConfig, "debug/gpt", ["run.dir=unused", "model.vocabulary=100"]).model
    first = parameter_specs(model)
    first.clear()  # what a caller does with the list is its own affair
    wider = model.model_copy(update={"hidden": 2 * model.hidden})
    embedding, of_wider = parameter_specs(model)[0], parameter_specs(wider)[0]
    assert of_wider.shape[1] == 2 * embedding.shape[1]
    assert parameter_specs(model, "teacher.")[0].name == f"teacher.{embedding.name}"
