"use strict";
// Looks for a number whose SHA-256 with the token begins with enough zero bits. It runs in workers,
// and needs nothing from outside itself.
function search() {
  const K = Int32Array.of(
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2);
  const FIRST = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
  const W = new Int32Array(64);

  function block(state, bytes, from) {
    for (let i = 0, at = from; i < 16; i++, at += 4) {
      W[i] = bytes[at] << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
    }
    for (let i = 16; i < 64; i++) {
      const x = W[i - 15], y = W[i - 2];
      const s0 = (x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3;
      const s1 = (y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10;
      W[i] = W[i - 16] + s0 + W[i - 7] + s1 | 0;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const s1 = (e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7);
      const t1 = h + s1 + (e & f ^ ~e & g) + K[i] + W[i] | 0;
      const s0 = (a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10);
      const t2 = s0 + (a & b ^ a & c ^ b & c) | 0;
      h = g; g = f; f = e; e = d + t1 | 0; d = c; c = b; b = a; a = t1 + t2 | 0;
    }
    state[0] += a; state[1] += b; state[2] += c; state[3] += d;
    state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  }

  // The state after all of the token that fills whole blocks, and the bytes that are left.
  return function begin(token, bits) {
    const text = Uint8Array.from(token + ":", (letter) => letter.charCodeAt(0));
    const whole = text.length >> 6 << 6;
    const middle = Int32Array.from(FIRST);
    for (let at = 0; at < whole; at += 64) block(middle, text, at);
    const rest = text.length - whole;
    const tail = new Uint8Array(128);
    tail.set(text.subarray(whole));
    const state = new Int32Array(8);
    const zeros = () => state[0] !== 0 ? Math.clz32(state[0]) : 32 + Math.clz32(state[1]);

    return function isFound(number) {
      const digits = String(number);
      let end = rest;
      for (let i = 0; i < digits.length; i++) tail[end++] = digits.charCodeAt(i);
      const size = end < 56 ? 64 : 128;
      tail.fill(0, end);
      tail[end] = 0x80;
      const length = (whole + end) * 8;
      tail[size - 2] = length >> 8;
      tail[size - 1] = length;
      state.set(middle);
      block(state, tail, 0);
      if (size === 128) block(state, tail, 64);
      return zeros() >= bits;
    };
  };
}

function inWorker(search) {
  const begin = search();
  onmessage = ({ data: { token, bits, first, step } }) => {
    const isFound = begin(token, bits);
    let number = first;
    for (;;) {
      for (let i = 0; i < 4096; i++, number += step) {
        if (isFound(number)) { postMessage({ found: String(number) }); return; }
      }
      postMessage({ tried: 4096 });
    }
  };
}

(function main() {
  const page = document.getElementById("challenge").dataset;
  const bar = document.getElementById("bar");
  const say = document.getElementById("say");
  const again = document.getElementById("again");
  const workers = [];
  let answered = false;

  const stop = () => { while (workers.length) workers.pop().terminate(); };

  function fail(why) {
    stop();
    bar.hidden = true;
    say.textContent = why;
    again.hidden = false;
    again.focus();
  }

  // A browser that keeps no cookies would solve one puzzle after the other, for ever.
  function tooOften() {
    try {
      const recent = JSON.parse(sessionStorage.getItem("tidegate") || "[]").filter((at) => Date.now() - at < 60000);
      recent.push(Date.now());
      sessionStorage.setItem("tidegate", JSON.stringify(recent.slice(-5)));
      return recent.length > 3;
    } catch { return false; }
  }

  async function ask(body) {
    const answer = await fetch(page.post, {
      method: "POST", credentials: "same-origin", cache: "no-store",
      headers: { "Content-Type": "application/json", "Accept": "application/json" },
      body: JSON.stringify(body),
    });
    return { ok: answer.ok, ...await answer.json().catch(() => ({})) };
  }

  function done() {
    bar.value = bar.max;
    if (page.safe === "yes") {
      say.textContent = "Done. Taking you to the page…";
      location.reload();
    } else {
      say.textContent = "Done. What you sent has not been passed on yet.";
      again.textContent = "Send it again";
      again.hidden = false;
      again.focus();
    }
  }

  // A token is used up by its first answer: a second would be held against the visitor.
  async function answer(token, solution) {
    if (answered) return;
    answered = true;
    const sorry = "The answer could not be sent. Check your connection, then try again.";
    const told = await ask({ token, solution }).catch(() => null);
    if (!told) return fail(sorry);
    if (told.ok && told.pass) return tooOften()
      ? fail("The puzzle is solved, but this browser does not keep the cookie that says so. Allow cookies for this site, then try again.")
      : done();
    fail(told.detail ? "That did not work: " + told.detail + "." : sorry);
  }

  function progress(bits) {
    const expected = 2 ** bits;
    let tried = 0;
    return (more) => {
      tried += more;
      // How likely it is that so many tries have found one.
      bar.value = Math.round(100 * (1 - Math.exp(-tried / expected)));
    };
  }

  function solve(token, bits) {
    const tell = progress(bits);
    const count = Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1));
    const source = "(" + inWorker + ")(" + search + ")";
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    for (let first = 0; first < count; first++) {
      const worker = new Worker(url);
      workers.push(worker);
      worker.onerror = () => { if (workers.length) { stop(); solveHere(token, bits); } };
      worker.onmessage = ({ data }) => {
        if (data.tried) return tell(data.tried);
        if (workers.length) { stop(); answer(token, data.found); }
      };
      worker.postMessage({ token, bits, first, step: count });
    }
  }

  // Without workers, in small pieces, so that the page stays alive.
  function solveHere(token, bits) {
    const isFound = search()(token, bits);
    const tell = progress(bits);
    let number = 0;
    (function piece() {
      for (let i = 0; i < 2048; i++, number++) {
        if (isFound(number)) return answer(token, String(number));
      }
      tell(2048);
      setTimeout(piece, 0);
    })();
  }

  again.onclick = () => location.reload();
  if (!navigator.cookieEnabled) {
    return fail("This browser keeps no cookies. Allow them for this site, then try again.");
  }
  if (page.kind === "captcha") {
    window.tidegateSolved = (solution) => answer(page.token, solution);
    return;
  }
  const bits = Number(page.difficulty);
  try { solve(page.token, bits); } catch { stop(); solveHere(page.token, bits); }
})();
