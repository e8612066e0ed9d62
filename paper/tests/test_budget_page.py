from lbq_paper import budget_page


def test_the_page_is_what_the_records_generate():
    assert budget_page.PAGE.read_text() == budget_page.page(), (
        "write it again: python -m lbq_paper.budget_page"
    )
