// What may change, how far, and how hard it is.
import { Bars, dayNumber, dayText, elementId, fieldText, isMissing, numberText } from "./shared.js";

const EFFORTS = ["very easy", "easy", "as usual", "hard", "very hard", "impossible"];
const FREE = { mode: "free", low: null, high: null, levels: null, must: false, effort: 2 };

const Range = {
  components: { Bars },
  props: { column: Object, low: [String, Number], high: [String, Number], now: [String, Number] },
  emits: ["change"],
  template: `
  <div class="range" role="group" :aria-label="'Acceptable range of ' + column.label">
    <div class="plot">
      <Bars :column="column" :off="off" />
      <span v-if="here !== null" class="ring" :style="{ left: 100 * here + '%' }"></span>
      <input type="range" class="low" min="0" max="1000" :value="at(low, 0)" :aria-label="'Least ' + column.label"
             :aria-valuetext="low === null ? 'no limit' : text(low)" @input="drag('low', $event)">
      <input type="range" class="high" min="0" max="1000" :value="at(high, 1000)" :aria-label="'Greatest ' + column.label"
             :aria-valuetext="high === null ? 'no limit' : text(high)" @input="drag('high', $event)">
    </div>
    <div class="bounds">
      <label>from <input :type="type" step="any" :value="low ?? ''" placeholder="no limit"
        @change="type_('low', $event)"></label>
      <label>to <input :type="type" step="any" :value="high ?? ''" placeholder="no limit"
        @change="type_('high', $event)"></label>
    </div>
  </div>`,
  computed: {
    type() { return this.column.kind === "date" ? "date" : "number"; },
    here() { return isMissing(this.now) ? null : this.at(this.now) / 1000; },
  },
  methods: {
    number(value) { return this.column.kind === "date" ? dayNumber(value) : Number(value); },
    text(value) { return numberText(this.column, value); },
    at(value, otherwise) {
      if (isMissing(value)) return otherwise;
      const share = (this.number(value) - this.column.low) / (this.column.high - this.column.low || 1);
      return Math.round(1000 * Math.min(1, Math.max(0, share)));
    },
    off(bar) {
      const middle = 500 * (bar[0] + bar[1]);
      return middle < this.at(this.low, -1) || middle > this.at(this.high, 1001);
    },
    drag(part, event) {
      let place = Number(event.target.value);
      const low = this.at(this.low, 0), high = this.at(this.high, 1000);
      if (part === "low") place = Math.min(place, high);
      else place = Math.max(place, low);
      event.target.value = place;
      const { column } = this;
      const free = part === "low" ? place <= 0 : place >= 1000;
      const exact = column.low + (place / 1000) * (column.high - column.low);
      const whole = Math.round(exact / column.step) * column.step;
      const value = column.kind === "date" ? dayText(Math.round(exact)) : String(Number(whole.toPrecision(12)));
      this.$emit("change", { [part]: free ? null : value });
    },
    type_(part, event) { this.$emit("change", { [part]: event.target.value || null }); },
  },
};

const Limit = {
  components: { Range },
  props: { column: Object, value: [String, Number], said: Object, open: Boolean, problem: String },
  emits: ["change", "open"],
  template: `
  <li class="limit" :class="{ set: summary }">
    <div class="line">
      <span class="what"><span class="label">{{ column.label }}</span>
        <span class="quiet">{{ fieldText(column, value) }}<template v-if="summary"> · {{ summary }}</template></span></span>
        <button class="toggle" :aria-pressed="keep ? 'true' : 'false'" @click="set({ mode: keep ? 'free' : 'keep' })"
          ><span v-if="keep" aria-hidden="true">✓ </span>Keep<span class="sr"> {{ column.label }} as it is</span></button>
        <button class="plain chevron" :aria-expanded="open ? 'true' : 'false'" :aria-controls="id"
          @click="$emit('open', !open)"><span class="sr">More limits on {{ column.label }}</span>
          <span aria-hidden="true">{{ open ? "▴" : "▾" }}</span></button>
    </div>
    <p v-if="problem" class="problem" role="alert">{{ problem }}</p>
    <div v-if="open" :id="id" class="inside">
      <p v-if="column.help" class="help">{{ column.help }}</p>
      <p v-if="column.lock" class="help">By the rules it may only go {{ column.lock }}.</p>
      <fieldset v-if="numeric" class="choices"><legend>It</legend>
        <label v-for="[mode, words] in modes" :key="mode"><input type="radio" :name="id + '-mode'" :value="mode"
          :checked="said.mode === mode" @change="set({ mode })"> {{ words }}</label></fieldset>
      <template v-if="!keep">
        <Range v-if="column.kind !== 'choice'" :column="column" :low="said.low" :high="said.high" :now="value" @change="set" />
        <fieldset v-else class="choices"><legend>Possible for me</legend>
          <label v-for="(level, i) in column.levels.slice(0, column.offered)" :key="i"><input type="checkbox"
            :checked="said.must ? allowed(i) : i === value || allowed(i)" :disabled="i === value" @change="toggle(i)"> {{ level }}
            <span v-if="i === value" class="quiet">(now)</span></label></fieldset>
        <div class="field inline"><label :for="id + '-effort'">Changing it is</label>
          <select :id="id + '-effort'" :value="said.effort" @change="effort(Number($event.target.value))">
            <option v-for="(words, i) in efforts" :key="i" :value="i">{{ words }}</option></select></div>
      </template>
    </div>
  </li>`,
  computed: {
    id() { return elementId("limit", this.column); },
    efforts() { return EFFORTS; },
    numeric() { return this.column.kind !== "choice" || this.column.ordered; },
    keep() { return this.said.mode === "keep"; },
    modes() {
      const all = [["free", "may change"], ["up", "may only go up"], ["down", "may only go down"], ["keep", "stays as it is"]];
      return all.filter(([mode]) => !this.column.lock || mode !== (this.column.lock === "up" ? "down" : "up"));
    },
    summary() {
      if (this.keep) return "";
      const { column, said } = this, parts = [];
      if (said.mode === "up" || said.mode === "down") parts.push("only " + said.mode);
      else if (column.lock) parts.push("only " + column.lock);
      if (said.low !== null) parts.push("from " + numberText(column, said.low));
      if (said.high !== null) parts.push("to " + numberText(column, said.high));
      if (said.levels) parts.push(said.levels.length + " of " + column.offered + " possible");
      if (said.effort !== 2) parts.push(EFFORTS[said.effort]);
      return parts.join(", ");
    },
  },
  methods: {
    fieldText,
    set(part) { this.$emit("change", { ...this.said, ...part }); },
    allowed(i) { return !this.said.levels || this.said.levels.includes(i); },
    toggle(i) {
      const all = [...Array(this.column.offered).keys()];
      const chosen = all.filter((k) => (k === i ? !this.allowed(k) : this.allowed(k)));
      this.set({ levels: chosen.length === all.length ? null : chosen, must: false });
    },
    effort(i) { if (i === 5) this.set({ mode: "keep" }); else this.set({ effort: i }); },
  },
};

export const Limits = {
  components: { Limit },
  props: { page: Object, row: Object, limits: Object, problems: Array },
  emits: ["change", "reset"],
  template: `
  <section id="limits" class="panel" aria-labelledby="limits-title">
    <h2 id="limits-title"><span class="step" aria-hidden="true">2</span> Your limits</h2>
    <button class="fold plain" :aria-expanded="unfolded ? 'true' : 'false'" aria-controls="limits-inside"
      @click="unfolded = !unfolded">{{ unfolded ? "Hide" : count ? "Change my limits (" + count + ")" : "Set limits" }}</button>
    <div id="limits-inside" :class="{ folded: !unfolded }">
    <p class="help">Say what stays, or how far it may go.</p>
    <ul class="limitlist">
      <Limit v-for="column in shown" :key="column.name" :column="column" :value="row[column.name]"
             :said="{ ...free, ...limits.features[column.name] }" :open="!!open[column.name]" :problem="said['limit:' + column.name]"
             @open="open = { ...open, [column.name]: $event }" @change="(said) => feature(column.name, said)" />
    </ul>
    <div class="field inline"><label for="most">Change at most</label>
      <select id="most" :value="limits.most ?? ''" @change="part({ most: $event.target.value ? Number($event.target.value) : null })">
        <option value="">any number</option>
        <option v-for="n in most" :key="n" :value="n">{{ n }} {{ n === 1 ? "thing" : "things" }}</option></select></div>
    <p v-if="held.length" class="help"><strong>Stays, by the rules:</strong> {{ listed(held) }}</p>
    <p v-if="derived.length" class="help"><strong>Follows from these:</strong> {{ listed(derived) }}</p>
    <details class="more" :open="typing" @toggle="typing = $event.target.open"><summary>Write a limit yourself</summary>
      <ul class="typed"><li v-for="(line, i) in limits.typed" :key="i"><code>{{ line }}</code>
        <button class="plain" @click="part({ typed: limits.typed.filter((_, k) => k !== i) })">Remove<span class="sr"> {{ line }}</span></button></li></ul>
      <form class="field" :class="{ wrong }" @submit.prevent="add"><label for="typed">A limit</label>
        <div class="line"><input id="typed" v-model="draft" aria-describedby="typed-help" spellcheck="false" autocomplete="off" :placeholder="example">
          <button>Add</button></div>
        <p id="typed-help" :class="wrong ? 'problem' : 'help'" :role="wrong ? 'alert' : null">{{ wrong ? wrong[1] : "Press Enter or Add. Such as " + example }}</p></form></details>
    <ul v-if="others.length" class="problems" role="alert"><li v-for="(words, i) in others" :key="i">{{ words }}</li></ul>
    <details v-if="page.rules.length" class="more"><summary>{{ page.rules.length }} rules that always hold</summary>
      <ul class="rules"><li v-for="(rule, i) in page.rules" :key="i">{{ rule.text }}
        <span v-if="rule.note" class="quiet"> {{ rule.note }}</span></li></ul></details>
    <button v-if="any" class="plain" @click="$emit('reset')">Remove all my limits</button>
    </div>
  </section>`,
  data() { return { open: {}, free: FREE, unfolded: false, draft: "", typing: false }; },
  watch: {
    wrong(wrong) { if (wrong) { this.draft = wrong[0]; this.typing = true; } },  // to be mended where it was typed
    "limits.typed": { immediate: true, handler(lines) { if (lines.length) this.typing = true; } },
  },
  computed: {
    own() { return this.page.columns.filter((column) => !column.derived.length); },
    derived() { return this.page.columns.filter((column) => column.derived.length); },
    shown() { return this.own.filter((column) => column.lock !== "keep"); },
    held() { return this.own.filter((column) => column.lock === "keep"); },
    said() { return Object.fromEntries(this.problems); },
    wrong() { return this.problems.find(([place]) => place.startsWith("typed:"))?.map((text) => text.replace(/^typed:/, "")); },
    others() { return this.problems.filter(([place]) => !/^(limit|typed):/.test(place)).map(([, words]) => words); },
    count() { return Object.keys(this.limits.features).length + (this.limits.most ? 1 : 0) + this.limits.typed.length; },
    most() { return Math.min(6, this.shown.length); },
    any() { return this.count > 0 || this.limits.target !== this.page.target; },
    example() {
      const column = this.page.columns.find((c) => c.kind === "number" && !c.derived.length && c.lock !== "keep");
      const name = column && (/^\w+$/.test(column.name) ? column.name : "\`" + column.name + "\`");
      return column ? name + " <= 1.2*original" : "changes <= 2";
    },
  },
  methods: {
    listed(columns) { return columns.map((column) => column.label + " " + fieldText(column, this.row[column.name])).join(" · "); },
    add() {
      const line = this.draft.trim();
      if (!line) return;
      this.draft = "";
      this.part({ typed: [...this.limits.typed.filter((other) => other !== line), line] });
    },
    part(part) { this.$emit("change", { ...this.limits, ...part }); },
    feature(name, said) {
      const features = { ...this.limits.features, [name]: said };
      if (JSON.stringify({ ...FREE, ...said }) === JSON.stringify(FREE)) delete features[name];
      this.part({ features });
    },
  },
};
