"""Whisper's modules for training: only the embedding rows in use, and heads for further losses."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from whisper.model import (
    AudioEncoder,
    ModelDimensions,
    MultiHeadAttention,
    TextDecoder,
    Whisper,
    sinusoids,
)

from recipes.digits.sequences import END, IGNORED, TIME, TOKEN_IDS

VOCABULARY = 51_864
DROPOUT = 0.1  # of what each encoder layer adds
WHISPER = ("encoder.", "decoder.")  # the beginnings of the names that a checkpoint has
UNUSED = math.log(VOCABULARY - len(TOKEN_IDS))  # the joint logit of the unused rows, each of 0


def dimensions(width: int, layers: tuple[int, int]) -> ModelDimensions:
    """Whisper's English-only dimensions, heads 64 wide; a small encoder has narrower ones."""
    audio = {"n_audio_ctx": 1500, "n_audio_state": width, "n_audio_layer": layers[0]}
    text = {"n_text_ctx": 448, "n_text_state": width, "n_text_layer": layers[1]}
    heads = {"n_audio_head": min(width // 32, max(4, width // 64)), "n_text_head": width // 64}
    return ModelDimensions(n_mels=80, n_vocab=VOCABULARY, **audio, **text, **heads)


def encode(
    encoder: AudioEncoder, mel: Tensor, offsets: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """mel [B, n_mels, 2 q], q up to 1500 -> the encoder's output [B, q, d].

    offsets [B] int64: the first position of each window; None: 0. dropout: of what a layer adds.
    """
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).transpose(1, 2)
    positions = torch.arange(x.shape[1], device=x.device)
    positions = positions if offsets is None else offsets[:, None] + positions
    x = (x + encoder.positional_embedding[positions]).to(x.dtype)
    for block in encoder.blocks:
        x = x + F.dropout(block(x) - x, dropout) if dropout else block(x)
    return encoder.ln_post(x)


def last_states(decoder: TextDecoder, embedded: Tensor, audio: Tensor) -> Tensor:
    """Tokens' embeddings [B, T, d], the encoder's output [B, q, d] -> the states [B, T, d] from
    which come the logits.
    """
    x = embedded + decoder.positional_embedding[: embedded.shape[1]]
    for block in decoder.blocks:
        x = block(x.to(audio.dtype), audio, mask=decoder.mask)
    return decoder.ln(x)


class Student(nn.Module):
    """A Whisper model in training: its own weights, plus parts that are discarded at the end."""

    def __init__(self, dims: ModelDimensions) -> None:
        super().__init__()
        self.dims = dims
        whisper = Whisper(dims)
        self.encoder, self.decoder = whisper.encoder, whisper.decoder
        del self.decoder.token_embedding
        width = dims.n_text_state
        self.rows = nn.Parameter(torch.randn(len(TOKEN_IDS), width) * 0.5)
        self.digit_heads = nn.Linear(width, 3 * 11)
        self.edge_head = nn.Linear(width, 4)
        with torch.no_grad():
            look_back(self.decoder)
            # A time token's row starts as the encoder's sinusoid at that time (a position is 20 ms,
            # and so is a time token): attention can copy the place it looks at, and find the place
            # that a token means.
            waves = sinusoids(1501, width)
            self.rows[TIME:] = waves
            for layer, block in enumerate(self.encoder.blocks):
                look_nearby(block.attn, layer)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.qkv_attention = MethodType(attend, module)

    def encode(self, mel: Tensor, offsets: Tensor) -> Tensor:
        """mel [B, 80, frames], offsets [B] int64 -> [B, frames / 2, width].

        The positions of window b start at offsets[b].
        """
        return encode(self.encoder, mel, offsets, DROPOUT if self.training else 0.0)

    def decode(self, tokens: Tensor, audio: Tensor) -> Tensor:
        """tokens [B, T], audio [B, S, width] -> logits [B, T, rows + 1].

        The last logit stands for all unused rows.
        """
        rows = F.pad(self.rows, (0, 0, 0, 1))  # UNKNOWN: zeros
        logits = last_states(self.decoder, rows[tokens], audio).float() @ self.rows.T
        return F.pad(logits, (0, 1), value=UNUSED)

    def hearing_losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weighted cross entropies [] of the digit, those before, and the edges at each position.

        batch: mel [B, 80, frames], offsets [B], labels [B, 3, frames / 2], edges [B, frames / 2].
        """
        audio = self.encode(batch["mel"], batch["offsets"])
        digits = self.digit_heads(audio).float().unflatten(-1, (3, 11)).permute(0, 3, 2, 1)
        edges = self.edge_head(audio).float().transpose(1, 2)
        digit, *before = (
            F.cross_entropy(digits[:, :, i], batch["labels"][:, i], ignore_index=IGNORED)
            for i in range(3)
        )
        return {
            "digit": 0.5 * digit,
            "before": 0.3 * torch.stack(before).mean().nan_to_num(),  # no word in the batch: 0
            "edge": 0.3 * F.cross_entropy(edges, batch["edges"]),
        }

    def saying_losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Cross entropy [] of the tokens, and [] of misplaced attention, weighted.

        batch: tokens and targets [B, T], spans [B, T, 2], the encoder's output audio [B, S, width].
        """
        logits, targets = self.decode(batch["tokens"], batch["audio"]), batch["targets"]
        token = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        return {"token": token, "guide": 0.3 * self._misplaced(batch["spans"])}

    def _misplaced(self, spans: Tensor) -> Tensor:
        """-log of the attention that falls where it should, mean over the guided heads, [].

        spans [B, T, 2] as in `_missed`. The second half of the layers looks for what comes next.
        The last head of the layer before looks for what the current token means: the place to
        continue from.
        """
        first = len(self.decoder.blocks) // 2
        before = F.pad(spans, (0, 0, 1, 0))[:, :-1]
        losses = [self._missed(first - 1, before)[:, -1:].mean()]
        losses += [self._missed(i, spans).mean() for i in range(first, len(self.decoder.blocks))]
        return torch.stack(losses).mean()

    def _missed(self, layer: int, spans: Tensor) -> Tensor:
        """-log of the attention on `spans` [B, T, 2], [start, end) audio positions: [n, heads].

        n: the spans that are not empty.
        """
        which, where = (spans[..., 1] > spans[..., 0]).nonzero(as_tuple=True)
        scores = self.decoder.blocks[layer].cross_attn.scores.transpose(1, 2)
        spans = spans[which, where]
        log = scores[which, where].float().log_softmax(-1)  # [n, heads, S]
        at = torch.arange(log.shape[-1])
        inside = (at >= spans[:, :1]) & (at < spans[:, 1:])
        hit = log.masked_fill(~inside[:, None], -torch.inf).logsumexp(-1)
        return -hit.clamp(min=-12)

    def checkpoint(self) -> dict[str, object]:
        """OpenAI's format: {"dims", "model_state_dict"}, float16, unused embedding rows zero."""
        embedding = torch.zeros(VOCABULARY, self.dims.n_text_state)
        embedding[list(TOKEN_IDS)] = self.rows.detach()
        state = {"decoder.token_embedding.weight": embedding, **self.state_dict()}
        kept = {k: v.half().contiguous() for k, v in state.items() if k.startswith(WHISPER)}
        return {"dims": asdict(self.dims), "model_state_dict": kept}


SHARPNESS = 1.5  # of the initial attention to near positions
# How far (in positions of 20 ms) the heads of a layer initially look back and ahead: nearby sounds,
# then the previous and the next word.
DISTANCES = ((2.0, 5.0), (4.0, 9.0), (8.0, 30.0), (12.0, 45.0))


def attend(
    self: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Whisper's attention: q [B, T, d], k, v [B, S, d], mask [n, n] -> [B, T, d], scores.

    As matrix products, which in bfloat16 on a CPU are faster than torch's fused attention. Keeps
    the scores, [B, heads, T, S], for the guide.
    """
    q, k, v = (x.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for x in (q, k, v))
    self.scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    seen = self.scores if mask is None else self.scores + mask[: q.shape[2], : q.shape[2]]
    return (seen.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2), self.scores


def look(
    attention: MultiHeadAttention, places: Sequence[tuple[Tensor, Tensor]], top: float
) -> None:
    """Set query and key weights with which each head looks at another position from the start.

    places: for each head, the weights [2 w, width] that read w sines of the position and then its w
    cosines, and by what angles [w] the position looked at is earlier. top: of the query.
    """
    for weight in (attention.query.weight, attention.key.weight):
        nn.init.normal_(weight, std=0.02)
    for head, (waves, angles) in enumerate(places):
        cos, sin = angles.cos().diag(), angles.sin().diag()
        back = torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
        first = head * (len(attention.key.weight) // attention.n_head)
        attention.key.weight[first : first + len(waves)] += SHARPNESS * waves
        attention.query.weight[first : first + len(waves)] += top * back @ waves


def look_nearby(attention: MultiHeadAttention, layer: int) -> None:
    """Have each head look near its own position from the start.

    The sinusoids of two positions p, q have the product sum cos(w (p - q)); rotated by w d it peaks
    at p - q = d. Learning this takes most of a small model's training time.
    """
    width, heads, places = len(attention.key.weight), attention.n_head, []
    half = width // 2
    speeds = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half))
    for head in range(heads):
        distance = DISTANCES[min(layer, len(DISTANCES) - 1)][head % 4 // 2] * (-1) ** head
        first = int((speeds > 2 / max(abs(distance), 3)).sum())
        chosen = torch.linspace(first, first + half // 2, half // heads).round().long()
        chosen = chosen.clamp(max=half - 1)
        waves = torch.eye(width)[torch.cat([chosen, half + chosen])]
        places.append((waves, -distance * speeds[chosen]))
    look(attention, places, 1.0)


def look_back(decoder: TextDecoder) -> None:
    """Set positions to sinusoids, in a quarter of the width, and heads to look one to three back.

    What is said next depends on the last words, wherever they are in the text. Late positions,
    which are rare in training, then work like early ones.
    """
    positions, width = decoder.positional_embedding.shape
    count = min(width // 8, 32)  # a head of 64 holds a sine and a cosine of each
    speeds = torch.logspace(math.log10(2.5), math.log10(0.02), count)
    angles = torch.arange(positions)[:, None] * speeds
    waves = torch.linalg.qr(torch.randn(width, 2 * count)).Q.T  # sin, then cos
    decoder.positional_embedding.copy_(1.5 * torch.cat([angles.sin(), angles.cos()], 1) @ waves)
    for layer, block in enumerate(decoder.blocks[:2]):
        places = [(waves, speeds * (1, 2 + layer)[i % 2]) for i in range(block.attn.n_head)]
        look(block.attn, places, SHARPNESS)


def disturbed(tokens: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Replace a few digits, so that one mistake does not lead to the next: [B, T] -> [B, T]."""
    digits = (tokens < END) & (targets != IGNORED)
    changed = digits & (torch.rand(tokens.shape, generator=generator) < rate)
    return torch.where(changed, torch.randint(0, 10, tokens.shape, generator=generator), tokens)
