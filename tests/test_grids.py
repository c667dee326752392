"""Tables on terminals of any width."""

from io import StringIO

from rich.console import Console

from mintrl_trl.reporting.grids import in_parts, new_grid, print_fitting


def shown(forms, width):
    output = StringIO()
    print_fitting(forms, Console(file=output, width=width))
    return output.getvalue()


def form(narrow, name):
    made = new_grid(["name"], ["Pass@1"], narrow=narrow)
    made.add_row(name, "50.0")
    return made


def test_the_first_form_that_fits_is_shown_and_no_later_one_is_made():
    made = []

    def forms():
        for narrow in (False, True):
            made.append(narrow)
            yield form(narrow, "a_name_of_twenty_one_")

    assert "│ a_name_of_twenty_one_ │" in shown(forms(), 34)  # 21 + 6, three lines and four spaces
    assert made == [False]
    assert "a_name_of_twenty_one_   50.0\n" in shown(forms(), 33)
    assert "name " in shown(forms(), 33)


def test_where_no_form_fits_nothing_is_cut_off():
    text = shown([form(True, "a_name_of_twenty_one_")], 18)
    assert "…" not in text
    assert "".join(line[:11].strip() for line in text.splitlines()[2:]) == "a_name_of_twenty_one_"


def test_a_name_in_parts_is_no_markup():
    assert in_parts("models/[b]x\x1b/1", " ").plain == " models/\n [b]x\\x1b/\n 1"
