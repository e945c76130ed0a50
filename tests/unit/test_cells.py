"""Text in a terminal: what a job's code says must neither break a line's width nor reach the terminal as control."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.cells import cell_len

from gpuwatch.export.cells import clean, cut, cut_left, pad, shorten, width_of, wrap

TEXTS = {
    "plain": "the training loop waits for its next batch and nobody knows who should deliver it " * 3,
    "japanese": "ロス.append(float(損失))  # 損失を毎ステップ読み出して記録する処理です。とても長い説明が続きます" * 2,
    "mixed": "x = 損失.item() / 2  # comment 処理 more words" * 4,
    "korean with spaces": "손실을 매 단계마다 읽고 기록합니다 " * 8,
    "combining": "e\u0301" * 200 + " " + "n\u0303a" * 90,
    "emoji": "print('🚀🔥') " * 20 + "👩\u200d🔬" * 60 + "❤\ufe0f" * 70,
    "path": "/home/ann/" + "very_long_directory_name/" * 6 + "train.py:35 in fit (100 % of these samples)",
    "path beside a word": "it stands at " + "/a_directory" * 12 + "/x.py:9: `loss.item()`",
    "path of wide characters": "/home/ann/" + "とても長いディレクトリ名/" * 6 + "学習.py:35",
    "no break": "0123456789abcdef" * 20,
    "code": "f(" + "a/b+" * 60 + ")",
    "control": "\x1b[31mred\x1b[0m\x07 \x9b2J \u202eevil\u202c \ud800 \tif x:\r\n pass\u200b",
}


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = wrap(TEXTS[name], width, "  at      ", " " * 10)
    assert max(map(cell_len, lines)) <= width
    assert max(map(width_of, lines)) <= width
    assert lines[0].startswith("  at")
    assert all(line.startswith(" " * 10) for line in lines[1:])


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {"path", "path beside a word", "path of wide characters"}))
def test_wrapping_loses_nothing(name: str) -> None:
    said = "".join("".join(wrap(TEXTS[name], 40, "    ")).split())
    assert said == "".join(clean(TEXTS[name]).split())


def test_lines_break_between_words_where_they_can() -> None:
    assert wrap("aaaa bbbb cccc", 11, "- ", "  ") == ["- aaaa bbbb", "  cccc"]
    assert wrap("", 11, "- ") == ["-"]
    assert wrap("a\u00a0b c", 5) == ["a\u00a0b c"]
    assert wrap("aa b\u00a0c", 5) == ["aa", "b\u00a0c"], "a share and its name stay on one line"


def test_a_long_path_keeps_the_file_and_whole_directories() -> None:
    first = wrap(TEXTS["path"], 80, "  at      ")[0]
    assert first.endswith("/train.py:35 in fit")
    assert "…/very_long_directory_name/" in first
    assert cut_left("/a/bcd/e.py", 8) == "…/e.py"


def test_a_mark_stays_with_its_character() -> None:
    assert all(not line.startswith("\u0301") for line in wrap(TEXTS["combining"], 21))
    assert cut("e\u0301" * 5, 3) == "e\u0301e\u0301…"
    assert cut_left("e\u0301" * 5, 3) == "…e\u0301e\u0301"


def test_nothing_reaches_the_terminal_that_moves_the_cursor_hides_or_turns_text() -> None:
    said = clean(TEXTS["control"])
    assert said.isprintable()
    assert said == "�[31mred�[0m� �2J �evil� � if x: pass�"
    said.encode()


def test_columns_are_of_cells() -> None:
    assert [width_of(pad(text, 8)) for text in ("ab", "損失", "e\u0301")] == [8, 8, 8]
    assert cut("損失損失", 5) == "損失…"
    assert cut("損失", 0) == ""


def test_a_command_is_shortened_by_words_and_a_single_long_one_keeps_its_end() -> None:
    assert shorten("python train.py --lr 1", 14) == "python ..."
    assert shorten("python  train.py", 60) == "python train.py"
    assert width_of(shorten("/opt/" + "x" * 90 + "/bin/python -m fit", 30)) <= 30
    assert "bin/python" in shorten("/opt/" + "x" * 90 + "/bin/python -m fit", 30)


def test_printing_a_diagnosis_loads_no_terminal_toolkit() -> None:
    code = "import sys, gpuwatch.export.diagnosis_text; print(sorted({'rich', 'textual'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
