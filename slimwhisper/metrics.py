"""Names the metrics of engines and requests, for the server, with their help texts.

Counters are named without the `_total` that Prometheus appends.
"""

HELP = {
    "slimwhisper_requests": "Requests that ended, by outcome.",
    "slimwhisper_in_flight": "Requests in flight, by state.",
    "slimwhisper_streams": "Live streams that are open.",
    "slimwhisper_updates": "Updates of live streams.",
    "slimwhisper_merged_updates": (
        "Updates of live streams that became due during another update, and were merged."
    ),
    "slimwhisper_commit_latency_seconds": (
        "Seconds from the arrival of an update's newest audio until the text that it committed "
        "was sent."
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
    "slimwhisper_preemptions": "Texts that gave up memory for an older one, and resumed later.",
}
