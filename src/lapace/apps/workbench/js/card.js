// One way: its dial, what changes, how sure it is. Everything it shows is stored in its stops.
import { percent, Scale } from "./shared.js";

export const Card = {
  components: { Scale },
  props: { card: Object, number: Number, answer: Object, columns: Array, stop: Number, kept: Boolean,
    efforts: Object, writing: Boolean },
  emits: ["stop", "keep", "letter", "try"],
  template: `
  <article class="card panel" :class="{ reached: now.reached }" :aria-labelledby="id + '-title'">
    <div class="head">
      <p class="quiet">Way {{ number }}<template v-if="asked"> · {{ asked }}</template></p>
      <h3 :id="id + '-title'">{{ now.title || card.title }}</h3>
      <div class="dial">
        <label :for="id + '-dial'">{{ now.name }}<span v-if="now.surest" class="badge">safest</span></label>
        <p v-if="now.meaning" class="help">{{ now.meaning }}</p>
        <input :id="id + '-dial'" type="range" min="0" :max="stops.length - 1" step="1" :value="stop"
               :aria-valuetext="spokenStop" :style="{ '--at': stop / (stops.length - 1) }"
               @input="$emit('stop', Number($event.target.value))">
        <div class="ticks" aria-hidden="true"><span v-for="(item, i) in stops" :key="i" :class="{ named: item.named, on: i <= stop }"
          :style="{ left: 100 * i / (stops.length - 1) + '%' }"></span></div>
        <div class="ends" aria-hidden="true"><span>today</span><span>{{ ordered ? "safer" : "more typical" }}</span></div>
      </div>
      <p class="flip" :class="now.reached ? (just ? 'just' : 'yes') : 'no'"><span class="sign" aria-hidden="true">
        {{ now.reached ? "✓" : "✕" }}</span> <span>Decision: <strong>{{ now.label }}</strong>{{ just ? ", only just" : "" }}</span></p>
    </div>

    <div class="what">
      <p v-if="!now.changes.length" class="quiet nochange">Everything as it is today.</p>
      <ul v-else class="changes">
        <li v-for="change in now.changes" :key="change.f">
          <span class="what">{{ columns[change.f].label }}<template v-if="columns[change.f].help"> ·
            {{ columns[change.f].help }}</template></span>
          <span class="values"><span class="was">{{ change.before }}</span><span class="arrow" role="img" aria-label="to">→</span><strong>{{ change.after }}</strong></span>
          <span v-if="change.enough" class="enough">Just enough: {{ change.enough === change.before ? "as today" : change.enough }}</span>
          <Scale :column="columns[change.f]" :from="change.from" :to="change.to"
                 :title="columns[change.f].label + ' among all cases: from ' + change.before + ' to ' + change.after" />
        </li>
      </ul>
      <p v-for="change in now.follows" :key="'follows' + change.f" class="quiet follow">
        {{ columns[change.f].label }} follows: {{ change.before }} → {{ change.after }}</p>
    </div>

    <div class="figures">
      <dl class="sure">
        <div v-if="now.effort"><dt>Effort</dt>
          <dd><span class="meter"><span :style="{ width: 100 * now.effort / efforts.most + '%' }"></span></span>{{ effort }}</dd></div>
        <div v-if="now.chance !== null"><dt>Chance</dt>
          <dd><span class="meter"><span :style="{ width: 100 * now.chance + '%' }"></span></span>
            {{ percent(now.chance) }}</dd></div>
        <div v-if="now.keeps !== null && !just"><dt>Likely to last</dt>
          <dd><span class="meter"><span :style="{ width: 100 * now.keeps + '%' }"></span></span>
            {{ percent(now.keeps) }}<span v-if="percent(now.keepsLow) !== percent(now.keepsHigh)" class="quiet">({{ percent(now.keepsLow) }} to
            {{ percent(now.keepsHigh) }})</span></dd></div>
        <div v-if="now.usual"><dt>Such a case is</dt><dd>{{ now.usual }}</dd></div>
      </dl>
      <p v-if="just" class="notice">Close to the line: a small difference could turn it.</p>
      <p v-if="now.usual === 'very unusual' && now.changes.length" class="notice">Hardly any case with this
        decision looks like this. Treat it with care.</p>

      <div class="actions">
        <button :aria-pressed="kept ? 'true' : 'false'" :disabled="!stop" @click="$emit('keep')">
          <span aria-hidden="true">{{ kept ? "★" : "☆" }}</span> {{ kept ? "Bookmarked" : "Bookmark" }}</button>
        <button :disabled="!stop" @click="$emit('letter')">{{ writing ? "Writing …" : "Letter to print" }}</button>
        <button class="plain" @click="$emit('try')">Try your own values</button>
      </div>
    </div>
  </article>`,
  computed: {
    id() { return "way-" + this.number; },
    stops() {
      const today = { key: "today", name: "Today", label: this.answer.label, chance: this.answer.chance,
        keeps: null, usual: "", named: true, changes: [], follows: [], reached: false };
      return [today, ...this.card.stops.map((stop) => ({ ...stop, reached: true, named: !/^Step/.test(stop.name) }))];
    },
    ordered() { return this.card.stops.every((stop) => (stop.keeps ?? stop.chance) !== null); },
    asked() {
      const count = this.now.changes.length;
      return count ? count + (count === 1 ? " change" : " changes") : "";
    },
    effort() {
      const times = (this.now.effort / this.efforts.least).toFixed(1);
      return times === "1.0" ? "the least" : times + "×";
    },
    just() { return this.now.reached && this.now.edge; },
    now() { return this.stops[this.stop]; },
    spokenStop() {
      return this.now.name + ": " + this.now.label + (this.now.chance === null ? ""
        : ", chance " + percent(this.now.chance));
    },
  },
  methods: { percent },
};
