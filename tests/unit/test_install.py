"""scripts/install.py: uv gets what pip's configuration says."""

from scripts import install

LISTED = """\
:env:.find-links='/wheels /more'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.index-url='https://mirror.example/simple'
global.timeout='60'
user.index-url='https://own.example/simple'
global.require-virtualenv='true'
"""


def test_environ():
    """Names and forms that uv knows; the innermost of pip's places wins, and what was said to uv itself stands."""
    found = install.environ(LISTED, {"PATH": "/bin", "UV_HTTP_TIMEOUT": "5"})
    assert found == {
        "PATH": "/bin",
        "UV_HTTP_TIMEOUT": "5",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_DEFAULT_INDEX": "https://own.example/simple",
    }


def test_nothing_is_configured():
    """Without a configuration the variables are those of this process."""
    assert install.environ("", {"PATH": "/bin"}) == {"PATH": "/bin"}
