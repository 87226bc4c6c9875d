// One way: its dial, what changes, how sure it is. Everything it shows is stored in its stops.
import { percent, Picture, Scale } from "./shared.js";

const PathPicture = {
  props: { path: Object, columns: Array, current: Number },
  template: `
  <figure class="path">
    <svg viewBox="0 0 320 120" role="img" :aria-label="words">
      <rect v-for="(run, i) in runs" :key="i" class="okrun" :x="run.x" y="8" :width="run.width" height="92" />
      <polyline v-if="line" class="line" :points="line" />
      <circle v-for="(dot, i) in dots" :key="i" :class="dot.ok ? 'yes' : 'no'" :cx="dot.x" :cy="dot.y" r="3" />
      <line v-if="current !== null" class="here" :x1="x(current)" :x2="x(current)" y1="4" y2="104" />
      <text x="8" y="116">you today</text><text x="312" y="116" text-anchor="end">a typical case</text>
      <text v-if="line" x="8" y="18">chance</text>
    </svg>
    <ul class="lines"><li v-for="item in moved" :key="item.f">
      <span>{{ columns[item.f].label }}</span>
      <svg viewBox="0 0 100 22" preserveAspectRatio="none" aria-hidden="true"><polyline class="line" :points="small(item)" /></svg>
      <span class="quiet">{{ item.text[0] }} → {{ item.text[item.text.length - 1] }}</span></li></ul>
    <figcaption class="quiet">{{ words }}</figcaption>
  </figure>`,
  computed: {
    moved() { return this.path.lines.filter((item) => item.text[0] !== item.text[item.text.length - 1]); },
    dots() {
      return this.path.tau.map((tau, i) => ({ x: this.x(tau), ok: this.path.ok[i],
        y: this.path.chance[i] === null ? 54 : 98 - 88 * this.path.chance[i] }));
    },
    line() {
      return this.path.chance.every((chance) => chance !== null)
        ? this.dots.map((dot) => dot.x + "," + dot.y).join(" ") : "";
    },
    runs() {
      const found = [];
      this.path.ok.forEach((ok, i) => {
        if (!ok) return;
        const left = i ? (this.x(this.path.tau[i - 1]) + this.x(this.path.tau[i])) / 2 : this.x(0);
        const last = i + 1 >= this.path.tau.length;
        const right = last ? this.x(this.path.tau[i]) : (this.x(this.path.tau[i]) + this.x(this.path.tau[i + 1])) / 2;
        found.push({ x: left, width: Math.max(1, right - left) });
      });
      return found;
    },
    words() {
      const first = this.path.ok.indexOf(true), last = this.path.label.length - 1;
      return "The steps from you today, “" + this.path.label[0] + "”, to a typical case of “"
        + this.path.label[last] + "”" + (first > 0 ? "; the decision turns " + (first === last ? "at its end"
        : "after " + percent(this.path.tau[first]) + " of it") : "") + ". The plan above is a short cut near it.";
    },
  },
  methods: {
    x(tau) { return 8 + 304 * tau; },
    small(item) {  // on a scale of its own: from the least to the greatest value on the way
      const known = item.at.filter((at) => at !== null), low = Math.min(...known);
      const span = Math.max(...known) - low || 1;
      return item.at.map((at, i) => (at === null ? "" : 100 * this.path.tau[i] + "," + (20 - 18 * (at - low) / span)))
        .filter(Boolean).join(" ");
    },
  },
};

export const Card = {
  components: { PathPicture, Picture, Scale },
  props: { card: Object, number: Number, answer: Object, columns: Array, image: Boolean,
    originPixels: Object, stop: Number, kept: Boolean, fewest: Boolean },
  emits: ["stop", "keep", "letter", "try"],
  template: `
  <article class="card panel" :class="{ reached: now.reached }" :aria-labelledby="id + '-title'">
    <p class="quiet">Way {{ number }}<template v-if="asked"> · {{ asked }}{{ fewest ? ", the fewest" : "" }}</template></p>
    <h3 :id="id + '-title'">{{ now.title || card.title }}</h3>

    <div class="dial">
      <label :for="id + '-dial'">{{ now.name }}<span v-if="now.surest" class="badge">safest</span></label>
      <input :id="id + '-dial'" type="range" min="0" :max="stops.length - 1" step="1" :value="stop"
             :aria-valuetext="spokenStop" :style="{ '--at': stop / (stops.length - 1) }"
             @input="$emit('stop', Number($event.target.value))">
      <div class="ticks" aria-hidden="true"><span v-for="(item, i) in stops" :key="i" :class="{ named: item.named, on: i <= stop }"
        :style="{ left: 100 * i / (stops.length - 1) + '%' }"></span></div>
      <div class="ends" aria-hidden="true"><span>today</span>
        <span>{{ ordered ? "safest" : "most typical" }}</span></div>
    </div>

    <p class="flip" :class="now.reached ? (just ? 'just' : 'yes') : 'no'"><span class="sign" aria-hidden="true">
      {{ now.reached ? "✓" : "✕" }}</span> Decision: <strong>{{ now.label }}</strong><template v-if="just">, only
      just</template></p>

    <div v-if="image" class="pictures">
      <Picture v-if="originPixels" :image="originPixels" alt="The picture as it is" />
      <span aria-hidden="true">→</span>
      <Picture :image="now.pixels || originPixels" :alt="'The picture at: ' + now.name" />
    </div>
    <p v-else-if="!now.changes.length" class="quiet nochange">Everything as it is today.</p>
    <ul v-else class="changes">
      <li v-for="change in now.changes" :key="change.f">
        <span class="what">{{ columns[change.f].label }}<template v-if="columns[change.f].help"> ·
          {{ columns[change.f].help }}</template></span>
        <span class="values"><span class="was">{{ change.before }}</span><span class="arrow" role="img" aria-label="to">→</span><strong>{{ change.after }}</strong></span>
        <Scale :column="columns[change.f]" :from="change.from" :to="change.to"
               :title="columns[change.f].label + ' among all cases: from ' + change.before + ' to ' + change.after" />
      </li>
    </ul>
    <p v-for="change in now.follows" :key="'follows' + change.f" class="quiet follow">
      {{ columns[change.f].label }} follows: {{ change.before }} → {{ change.after }}</p>

    <dl class="sure">
      <div v-if="now.chance !== null"><dt>Chance</dt>
        <dd><span class="meter"><span :style="{ width: 100 * now.chance + '%' }"></span></span>
          {{ percent(now.chance) }}</dd></div>
      <div v-if="now.keeps !== null"><dt>Likely to last</dt>
        <dd><span class="meter"><span :style="{ width: 100 * now.keeps + '%' }"></span></span>
          {{ percent(now.keeps) }}<span v-if="now.keepsLow !== null" class="quiet">({{ percent(now.keepsLow) }} to
          {{ percent(now.keepsHigh) }})</span></dd></div>
      <div v-if="now.usual"><dt>Such a case is</dt><dd>{{ now.usual }}</dd></div>
    </dl>
    <p v-if="just" class="notice">Close to the line: a small difference could turn it.</p>
    <p v-if="now.usual === 'very unusual' && now.changes.length" class="notice">Hardly any case with this
      decision looks like this. Treat it with care.</p>

    <div class="actions">
      <button :aria-pressed="kept ? 'true' : 'false'" :disabled="!stop" @click="$emit('keep')">
        <span aria-hidden="true">{{ kept ? "★" : "☆" }}</span> {{ kept ? "Bookmarked" : "Bookmark" }}</button>
      <button :disabled="!stop" @click="$emit('letter')">Letter to print</button>
      <button v-if="!image" class="plain" @click="$emit('try')">Try your own values</button>
    </div>
    <details v-if="card.path" class="more"><summary>Step by step to a typical case</summary>
      <PathPicture :path="card.path" :columns="columns" :current="tau" /></details>
  </article>`,
  computed: {
    id() { return "way-" + this.number; },
    stops() {
      const today = { key: "today", name: "Today", label: this.answer.label, chance: this.answer.chance ?? null,
        keeps: null, usual: "", named: true, changes: [], follows: [], reached: false };
      return [today, ...this.card.stops.map((stop) => ({ ...stop, reached: true, named: !/^Step/.test(stop.name) }))];
    },
    ordered() { return this.card.stops.every((stop) => stop.chance !== null); },
    asked() {
      const count = this.card.stops[this.card.start].changes.length;
      return count ? count + (count === 1 ? " change" : " changes") : "";
    },
    just() { return this.now.reached && (this.now.edge || this.stop <= this.card.start); },
    now() { return this.stops[Math.min(this.stop, this.stops.length - 1)]; },
    tau() {
      if (!this.stop) return 0;
      const place = this.now.key.split(":")[1];
      return place === undefined ? null : this.card.path.tau[Number(place)];
    },
    spokenStop() {
      return this.now.name + ": " + this.now.label + (this.now.chance === null ? ""
        : ", chance " + percent(this.now.chance));
    },
  },
  methods: { percent },
};
