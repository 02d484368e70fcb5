"""Which options does Celery run with, and why?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.bus.names import VISIBILITY_TIMEOUT_S, Kind
from service.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

BROKER_ANSWERS_S = 5.0
BROKER_CHECK_S = 10


def make_celery(settings: Settings) -> Celery:
    """The application of the cluster shape; `settings.broker_url` must be set."""
    from celery import Celery  # late: half a second that an embedded worker never needs

    app = Celery("rooftile", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        # The database is the truth. No result is kept anywhere else, nobody waits for one.
        result_backend=None,
        task_ignore_result=True,
        # A message is given back if its worker dies before it was heard. Hearing takes microseconds
        # (it only rings a Loop), so late acknowledgement costs nothing and nothing runs twice (CE-01, CE-07).
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,  # CE-02, CE-20
        # Replies of remote control fill the broker and inspect kills busy workers (CE-14, CE-22):
        # liveness is our own rows.
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        task_send_sent_event=False,
        # No ETA, no countdown, no priorities (CE-04, CE-19): delays and order are rows of ours.
        task_default_queue=str(Kind.SEARCH),
        task_create_missing_queues=True,
        task_serializer="json",
        accept_content=["json"],
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "socket_connect_timeout": 1.0,
            # A broker that vanishes without a word: who rings waits so long, and who listens finds out
            # within BRPOP's second and twice the interval.
            "socket_timeout": BROKER_ANSWERS_S,
            "health_check_interval": BROKER_CHECK_S,
            "socket_keepalive": True,
        },
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
    )
    return app
