"""What is measured of engines and requests: the names of the server and of Ray, and what they say.

A counter's name is without the `_total` that Prometheus puts behind it.
"""

HELP = {
    "slimwhisper_requests": "Requests that ended, by outcome.",
    "slimwhisper_in_flight": "Requests in flight, by state.",
    "slimwhisper_streams": "Live streams that are open.",
    "slimwhisper_updates": "Updates of live streams.",
    "slimwhisper_merged_updates": (
        "Updates of live streams that fell due while another ran, and became part of the next."
    ),
    "slimwhisper_commit_latency_seconds": (
        "Seconds from the arrival of the newest audio that an update knew until the text that it "
        "committed was sent."
    ),
    "slimwhisper_audio_seconds": "Seconds of audio transcribed.",
    "slimwhisper_busy_seconds": "Seconds the engines worked.",
    "slimwhisper_speed": "Seconds of audio per second of the engines' work.",
    "slimwhisper_steps": "Engine steps; a step advances every slot in use.",
    "slimwhisper_filled_slots": "Slots in use, summed over all steps.",
    "slimwhisper_batch_fill": "Slots in use, mean over all steps.",
    "slimwhisper_slots": "Slots of an engine.",
    "slimwhisper_cache_bytes": "Bytes allocated for caches.",
    "slimwhisper_text_bytes": "Bytes of them that texts have now.",
    "slimwhisper_preemptions": "Texts that gave memory to an older one, and went on later.",
}
