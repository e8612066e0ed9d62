import follow
import pytest

PAGE = """
<!-- runs first
two = 2
-->
```python
print("one", two, "three")
```
```text
one 2 three
```
```sh
echo 1,000.0 apples, and pears
```
```text
1,010 apples ...
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_page_is_one_program_and_its_outputs_are_compared(page):
    assert follow.follow(page) == 2
    assert follow.follow(page, with_shell=False) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("one 2 three", "one 3 three"), ("one 2 three", "one 2 four"), ("1,010", "1,060")],
)
def test_another_output_is_a_failure_that_names_its_line(page, right, wrong):
    page.write_text(PAGE.replace(right, wrong))
    with pytest.raises(SystemExit, match=r"page\.md:\d+: the page says"):
        follow.follow(page)


def test_a_command_that_fails_stops_the_reader(page):
    page.write_text("```sh\nfalse\necho never\n```\n")
    with pytest.raises(Exception, match="non-zero exit status 1"):
        follow.follow(page)
