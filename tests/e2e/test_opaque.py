"""The failures and cancels again, on the backend whose memory the host cannot read and whose streams run only when waited for."""
import os

os.environ["BATON_TEST_BACKEND"] = "opaque"

import tap  # noqa: E402
from test_cancel import *  # noqa: E402,F401,F403
from test_failures import *  # noqa: E402,F401,F403

if __name__ == "__main__":
    tap.main(globals())
