"""The page at `/` in a headless Chromium: a chat as a user has it. Nothing but the server is asked for anything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from running import Gate, Running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.real
QUESTION = "def add(a, b):"
HOSTILE = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>&lt;b&gt;'
NOISE = "Failed to load resource"  # what the console says of an answer with an error's status


@pytest.fixture(scope="module")
def running(pair: Any) -> Iterator[Running]:
    with Running(pair, slots=2, stream_interval=0.0) as running:  # each step is shown at once, however fast it is
        yield running


@pytest.fixture
def gate(running: Running) -> Iterator[Gate]:
    gate = Gate(running.server.service.engine)
    yield gate
    gate.open()
    while running.server.service.texts:
        pass
    running.server.service.engine.step = gate.own  # type: ignore[method-assign]


@pytest.fixture
def opened(browser: Browser, running: Running) -> Iterator[Callable[..., Page]]:
    """Opens the page; behind the test, no request went elsewhere and no error was in the console."""
    contexts, wrong = list[Any](), list[str]()

    def guard(route: Route) -> None:
        if route.request.url.startswith(f"{running.url}/"):
            route.continue_()
        else:
            wrong.append(route.request.url)
            route.abort()

    def opened(**options: Any) -> Page:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
        contexts.append(context)
        context.route("**/*", guard)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: said.type == "error" and NOISE not in said.text and wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(running.url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def ask(page: Page, text: str = QUESTION, **settings: Any) -> None:
    for name, value in settings.items():
        page.evaluate("([id, value]) => { document.getElementById(id).value = value }", [name, str(value)])
    page.fill("#message", text)
    page.press("#message", "Enter")


def answered(page: Page) -> str:
    """The last answer, once it has ended."""
    page.wait_for_selector("#send:enabled")
    return page.locator(".assistant").last.text_content() or ""


def figures(page: Page) -> str:
    return page.text_content("#figures") or ""


def of_the_api(running: Running, most: int) -> Any:
    """The answer to the question, asked without the page."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "seed": 1, "max_tokens": most}
    return httpx2.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()


def test_a_streamed_chat(opened: Callable[..., Page], running: Running, gate: Gate) -> None:
    """Text is there while the model decodes; tokens of one step have one colour; the figures are the answer's."""
    page = opened()
    page.locator("#model", has_text=running.server.service.settings.model).wait_for()
    ask(page, max_tokens=40)
    gate.let(6)
    page.locator(".assistant span").nth(2).wait_for()
    assert page.is_disabled("#send")
    part = page.locator(".assistant").text_content() or ""
    gate.open()
    text, wanted = answered(page), of_the_api(running, 40)
    assert part
    assert text.startswith(part)
    assert part != text
    assert text == wanted["choices"][0]["message"]["content"]
    steps = wanted["metrics"]["speculative_decoding"]["num_spec_steps"] + 1
    assert figures(page).startswith(f"40 tokens · {40 / steps:.2f} per step · ")
    colours = page.eval_on_selector_all(".assistant span", "all => all.map(each => [each.className, each.title])")
    assert len(colours) == steps
    assert {name for name, _ in colours} == {"", "step1", "step2"}
    together = [int(title.split()[0]) for name, title in colours if name]
    assert sum(together) + sum(not name for name, _ in colours) == 40
    assert min(together) > 1


def test_drafts_can_be_switched_off_and_compared(opened: Callable[..., Page]) -> None:
    page = opened()
    ask(page, max_tokens=30)
    first = answered(page)
    assert re.search(r"[\d.]+ tokens/s with drafts$", figures(page))
    page.click("#again")
    second = answered(page)
    assert not page.is_checked("#drafts")
    assert first == second
    assert "30 tokens · 1.00 per step" in figures(page)
    assert re.search(r"[\d.]+ tokens/s without drafts · drafts give [\d.]+× the speed$", figures(page))
    assert page.locator(".assistant").last.locator(".step1, .step2").count() == 0
    page.check("#drafts")
    with page.expect_request("**/chat/completions") as asked:
        ask(page, "go on")
    turns = asked.value.post_data_json["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    answered(page)


def test_stop_ends_the_text_in_the_server(opened: Callable[..., Page], running: Running, gate: Gate) -> None:
    for way in ("button", "Escape"):
        page = opened()
        gate.close()
        ask(page, max_tokens=1000)
        gate.let(3)
        page.wait_for_selector(".assistant span")
        page.click("#stop") if way == "button" else page.keyboard.press("Escape")
        text = answered(page)
        gate.open()
        assert text
        assert page.is_disabled("#stop")
        assert page.locator(".error").count() == 0
        while running.server.service.texts:
            page.wait_for_timeout(1)
    page = httpx2.get(f"{running.url}/metrics").text
    (most,) = re.findall(r"^lade_generated_tokens_total (\S+)", page, re.MULTILINE)
    assert float(most) < 1000


def test_it_works_by_keyboard(opened: Callable[..., Page]) -> None:
    """Every control has its turn and a visible focus; what is set is what is asked for; a copy is the answer."""
    page = opened()
    page.wait_for_function("document.activeElement.id === 'message'")  # the browser focuses as it first draws
    page.keyboard.type("x = 1")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("y = ")
    reached = list[str]()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", reached[-1]
        if reached[-1] == "drafts":
            page.keyboard.press("Space")
        elif reached[-1] == "summary":
            page.keyboard.press("Enter")
        elif reached[-1] == "key":
            break
        elif reached[-1] in SETTINGS:
            page.keyboard.press("Control+a")
            page.keyboard.type(SETTINGS[reached[-1]])
    assert reached == ["send", "clear", "drafts", "summary", *SETTINGS, "key"]
    page.focus("#send")
    with page.expect_request("**/chat/completions") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json == {
        "messages": [{"role": "user", "content": "x = 1\ny = "}],
        "stream": True,
        "lade": {"speculation": False, "steps": True},
        **{name: json.loads(value) for name, value in SETTINGS.items()},
    }
    text = answered(page)
    assert page.evaluate("document.activeElement.id") == "message"
    page.focus("#copy")
    page.keyboard.press("Enter")
    page.get_by_text("The last answer is copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == text
    page.focus("#clear")
    page.keyboard.press("Enter")
    assert page.locator(".turn").count() == 0


SETTINGS = {"temperature": "0.35", "top_p": "0.9", "seed": "7", "max_tokens": "12"}


def test_a_copy_without_the_clipboard_interface(opened: Callable[..., Page]) -> None:
    """As on a page of another machine without TLS."""
    page = opened()
    ask(page, max_tokens=5)
    text = answered(page)
    page.evaluate(
        "window.clipboard = navigator.clipboard; Object.defineProperty(navigator, 'clipboard', {value: null})"
    )
    page.click("#copy")
    assert page.evaluate("window.clipboard.readText()") == text


def test_text_is_never_html(opened: Callable[..., Page]) -> None:
    """Neither a model's nor a user's, nor an error's."""
    page = opened()
    chunks = [
        {"choices": [{"delta": {"content": piece}}], "lade": {"tokens": 2}} for piece in (HOSTILE[:9], HOSTILE[9:])
    ]
    sent = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, {"error": {"message": HOSTILE}}])
    page.route("**/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=sent))
    ask(page, HOSTILE)
    answered(page)
    assert [turn.text_content() for turn in page.locator(".turn").all()] == [HOSTILE] * 3
    assert page.locator("#log img, #log script, #log b").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_refused_question_can_be_changed(opened: Callable[..., Page]) -> None:
    page = opened()
    long = "x " * 4000
    ask(page, long)
    page.wait_for_selector(".error")
    assert "messages must have at most" in (page.text_content(".error") or "")
    assert page.input_value("#message") == long
    with page.expect_request("**/chat/completions") as asked:
        ask(page, "x = 1", max_tokens="")
    assert len(asked.value.post_data_json["messages"]) == 1
    assert "max_tokens" not in asked.value.post_data_json
    page.click("#stop")
    page.wait_for_selector("#send:enabled")


def test_a_setting_out_of_bounds_is_shown(opened: Callable[..., Page]) -> None:
    page = opened()
    ask(page, temperature=3)
    assert page.evaluate("document.querySelector('details').open")
    assert page.evaluate("document.activeElement.id") == "temperature"
    assert page.locator(".turn").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(opened: Callable[..., Page], scheme: str) -> None:
    """At least 4.5 to 1 for text, as the accessibility guidelines WCAG 2.2 ask."""
    page = opened(color_scheme=scheme)
    page.evaluate("""() => ["user", "step1", "step2", "error"].forEach(name => shown(name, "text"))""")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) > 0.5) == (scheme == "light")
    for name in ("user", "step1", "step2", "error"):
        colour = page.eval_on_selector(f".{name}", "each => getComputedStyle(each).color")
        lighter, darker = sorted([luminance(colour), luminance(ground)], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("size", [(320, 568), (844, 390)], ids=["upright", "across"])
def test_it_fits_a_phone(opened: Callable[..., Page], size: tuple[int, int]) -> None:
    width, height = size
    page = opened(viewport={"width": width, "height": height}, has_touch=True, is_mobile=True)
    page.tap("summary")
    page.fill("#message", "n" * 300)
    page.tap("#send")
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    log = page.locator("#log").bounding_box()
    assert log is not None
    assert log["height"] >= 80
    for control in page.locator("button, input, textarea").all():
        box = control.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
