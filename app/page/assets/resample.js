// Sound at another sample rate, piece by piece: each output sample is a sum of the input's
// neighbours, weighted by a sinc in a Kaiser window, which lets nothing above both halves of the
// rates pass (Smith, "Digital Audio Resampling", ccrma.stanford.edu/~jos/resample).

const CROSSINGS = 24;  // zeros of the sinc on each side
const BETA = 9;  // of the window: 90 dB
const PASS = 0.92;  // of the lower rate's half

function bessel(x) {  // the modified one, of order 0
  let [sum, term] = [1, 1];
  for (let k = 1; term > 1e-12 * sum; k++) sum += term *= (x / 2 / k) ** 2;
  return sum;
}

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

export class Resampler {
  constructor(from, to) {
    const common = divisor(from, to);
    [this.step, this.phases] = [from / common, to / common];
    const cutoff = PASS * Math.min(1, to / from);
    this.half = Math.ceil(CROSSINGS / cutoff);
    this.filters = Array.from({ length: this.phases }, (_, phase) => this.filter(phase / this.phases, cutoff));
    this.buffer = new Float32Array(this.half);  // silence before the first sample
    this.position = this.half;  // in `buffer`: the input sample at, or before, the next output sample
    this.phase = 0;  // of the next output sample, between two input samples
  }

  // The weights of the 2 * half samples around an output sample.
  filter(fraction, cutoff) {
    const weights = Float64Array.from({ length: 2 * this.half }, (_, i) => {
      const x = i - this.half + 1 - fraction;
      const edge = 1 - (x / this.half) ** 2;
      const sinc = x ? Math.sin(Math.PI * cutoff * x) / (Math.PI * x) : cutoff;
      return edge <= 0 ? 0 : sinc * bessel(BETA * Math.sqrt(edge));
    });
    const sum = weights.reduce((a, b) => a + b);
    return weights.map((weight) => weight / sum);
  }

  // samples: Float32Array of the next input; returns the output that is complete.
  push(samples) {
    const buffer = new Float32Array(this.buffer.length + samples.length);
    buffer.set(this.buffer);
    buffer.set(samples, this.buffer.length);
    const output = [];
    while (this.position + this.half < buffer.length) {
      const weights = this.filters[this.phase];
      const first = this.position - this.half + 1;
      let sum = 0;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * buffer[first + i];
      output.push(sum);
      this.phase += this.step;
      this.position += Math.floor(this.phase / this.phases);
      this.phase %= this.phases;
    }
    const done = Math.min(Math.max(this.position - this.half + 1, 0), buffer.length);
    this.buffer = buffer.slice(done);
    this.position -= done;
    return Float32Array.from(output);
  }
}
