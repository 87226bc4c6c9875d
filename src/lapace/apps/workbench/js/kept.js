// Plans that were kept: compare two, print, download.
import { changesText, download, percent } from "./shared.js";

export const Kept = {
  props: { plans: Array, columns: Array },
  emits: ["remove", "letter", "json", "forget"],
  template: `
  <section id="kept" class="kept panel" aria-labelledby="kept-title">
    <h2 id="kept-title"><span class="step" aria-hidden="true">4</span> Bookmarked</h2>
    <p v-if="!plans.length" class="quiet">Plans you bookmark appear here, to compare, print and download.</p>
    <ul v-else class="plans">
      <li v-for="plan in plans" :key="plan.id">
        <label class="pick"><input type="checkbox" :checked="chosen.includes(plan.id)" @change="toggle(plan.id)">
          <span><strong>{{ plan.title }}</strong>
          <span class="quiet">{{ changesText(columns, plan.stop.changes) }}</span>
          <span class="quiet">{{ plan.name ? plan.name + " · " : "" }}{{ plan.stop.name }} · {{ plan.stop.label }}<template
            v-if="plan.stop.chance !== null"> · chance {{ percent(plan.stop.chance) }}</template></span></span></label>
        <span class="actions"><button @click="$emit('letter', plan)">Letter to print</button>
          <button class="plain" @click="$emit('json', plan)">Data file (JSON)</button>
          <button class="plain" @click="$emit('remove', plan)">Remove<span class="sr"> {{ plan.title }}</span></button></span>
      </li>
    </ul>
    <p v-if="plans.length > 1 && both.length !== 2" class="quiet">Tick two plans to compare them.</p>
    <div v-if="both.length === 2" class="wide" tabindex="0" role="region" aria-label="Two plans compared">
      <table class="compare"><caption class="sr">Two plans compared</caption>
        <thead><tr><td></td><th scope="col">Today</th><th v-for="(plan, i) in both" :key="i" scope="col">{{ plan.title }}</th></tr></thead>
        <tbody>
          <tr><th scope="row">Decision</th><td>{{ both[0].from }}</td><td v-for="(plan, i) in both" :key="i">{{ plan.stop.label }}</td></tr>
          <tr v-for="f in features" :key="f"><th scope="row">{{ columns[f].label }}</th><td>{{ before(f) }}</td>
            <td v-for="(plan, i) in both" :key="i"><strong v-if="change(plan, f)">{{ change(plan, f).after }}</strong>
              <span v-else class="quiet">as today</span></td></tr>
          <tr><th scope="row">Chance</th><td>{{ percent(both[0].chance) }}</td><td v-for="(plan, i) in both" :key="i">{{ percent(plan.stop.chance) }}</td></tr>
          <tr><th scope="row">Likely to last</th><td></td><td v-for="(plan, i) in both" :key="i">{{ percent(plan.stop.keeps) }}</td></tr>
          <tr><th scope="row">Such a case is</th><td></td><td v-for="(plan, i) in both" :key="i">{{ plan.stop.usual }}</td></tr>
        </tbody></table></div>
    <p v-if="sure" class="notice">Your details, limits and bookmarks will be gone.
      <button @click="sure = false; $emit('forget')">Forget them</button>
      <button class="plain" @click="sure = false">Keep them</button></p>
    <button v-else class="plain" @click="sure = true">Forget everything on this device</button>
  </section>`,
  data() { return { chosen: [], sure: false }; },
  computed: {
    both() { return this.plans.filter((plan) => this.chosen.includes(plan.id)).slice(0, 2); },
    features() {
      const all = ["changes", "follows"].flatMap((kind) => this.both.flatMap((plan) => plan.stop[kind]));
      return [...new Set(all.map((change) => change.f))];
    },
  },
  methods: {
    changesText, percent,
    toggle(id) {
      const rest = this.chosen.filter((other) => other !== id);
      this.chosen = rest.length < this.chosen.length ? rest : [...rest, id].slice(-2);
    },
    change(plan, f) { return [...plan.stop.changes, ...plan.stop.follows].find((change) => change.f === f); },
    before(f) { return (this.change(this.both[0], f) ?? this.change(this.both[1], f)).before; },
  },
};

export const LetterDialog = {
  props: { letter: Object },
  emits: ["close"],
  template: `
  <dialog ref="dialog" class="sheet" aria-labelledby="letter-title" @close="$emit('close')">
    <div class="bar"><h2 id="letter-title">Your letter</h2>
      <button class="primary" @click="print">Print</button>
      <button @click="save">Download</button>
      <button class="plain" @click="$refs.dialog.close()">Close</button></div>
    <iframe ref="frame" title="The letter" :srcdoc="letter.html" sandbox="allow-same-origin allow-modals"
      @load="$refs.frame.contentDocument.addEventListener('keydown', leave)"></iframe>
  </dialog>`,
  mounted() { this.$refs.dialog.showModal(); },
  methods: {
    leave(event) { if (event.key === "Escape") this.$refs.dialog.close(); },
    print() { this.$refs.frame.contentWindow.print(); },
    save() { download(this.letter.file, this.letter.html, "text/html"); },
  },
};
