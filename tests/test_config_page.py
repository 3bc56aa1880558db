"""The guide's page of configuration keys is what the tables say, and each key says what it does."""

from tests import config_page


def test_the_page_is_made_from_the_tables() -> None:
    """`uv run python -m tests.config_page` writes it anew."""
    assert config_page.PAGE.read_text() == config_page.page()


def test_every_key_says_what_it_does() -> None:
    silent = [
        f"{section.model.__name__}.{name}: expected a docstring below it"
        for section in config_page.sections()
        for name in section.names
        if not config_page.what_it_does(section.model, name)
    ]
    assert not silent, "\n".join(["", *silent])


def test_every_key_is_on_the_page() -> None:
    shown = {(section.model, name) for section in config_page.sections() for name in section.names}
    models = {section.model for section in config_page.sections()} - {config_page.WorkersConfig}
    missing = {(model, name) for model in models for name in model.model_fields} - shown
    common = {(model, name) for model in models for name in config_page.COMMON if name in model.model_fields}
    assert missing - common == set()
