// Small things that several parts draw or write.
export const isMissing = (value) => (value ?? "") === "";
export const elementId = (prefix, column) => prefix + "-" + column.name.replace(/\s/g, "-");

export const percent = (share) => (share === null || share === undefined ? ""
  : share > 0.995 && share < 1 ? "over 99%" : share > 0.5 && share < 0.505 ? "just over 50%"
  : Math.round(100 * share) + "%");

// A number of a column as it is written there.
export function numberText(column, value) {
  if (column.kind === "date") return String(value);
  const places = Math.max(0, -Math.floor(Math.log10(column.step || 1) + 1e-9));
  const text = Number(value).toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 6) });
  const before = column.before ? column.before + (/[A-Za-z]$/.test(column.before) ? " " : "") : "";
  const after = column.after ? (column.after === "%" ? "%" : " " + column.after) : "";
  return before + text + after;
}

export function fieldText(column, value) {
  if (isMissing(value)) return "not known";
  return column.kind === "choice" ? column.levels[value] : numberText(column, value);
}

export const dayNumber = (text) => Math.round(Date.parse(text + "T00:00:00Z") / 86400000);
export const dayText = (number) => new Date(number * 86400000).toISOString().slice(0, 10);

// What a way changes, in one line.
export const changesText = (columns, changes) => changes.map(
  (change) => columns[change.f].label + " " + change.before + " → " + change.after).join(", ");

export function download(file, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Where others are; bars that `off` names are pale.
export const Bars = {
  props: { column: Object, off: { type: Function, default: () => false } },
  template: `
  <svg viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">
    <rect v-for="(bar, i) in column.scale" :key="i" class="bar" :class="{ off: off(bar) }"
          :x="100 * bar[0] + 0.3" :width="Math.max(0.4, 100 * (bar[1] - bar[0]) - 0.6)"
          :y="30 - 29 * bar[2]" :height="29 * bar[2]" /></svg>`,
};

// Where others are (bars), where you are (ring), and where you would be (dot).
export const Scale = {
  components: { Bars },
  props: { column: Object, from: Number, to: Number, title: String },
  template: `
  <div class="scale" role="img" :aria-label="title">
    <Bars :column="column" />
    <span class="rail"></span>
    <span v-if="from !== null && to !== null && (column.kind !== 'choice' || column.ordered)" class="move"
          :style="{ left: 100 * Math.min(from, to) + '%', width: 100 * Math.abs(to - from) + '%' }"></span>
    <span v-if="from !== null" class="ring" :style="{ left: 100 * from + '%' }"></span>
    <span v-if="to !== null" class="dot" :style="{ left: 100 * to + '%' }"></span>
  </div>`,
};

// One field of a form, whatever its kind.
export const Field = {
  props: { column: Object, value: [String, Number], problem: String, prefix: String, tried: Boolean },
  emits: ["change"],
  template: `
  <div class="field" :class="{ wrong: problem }">
    <label :for="id">{{ column.label }}
      <span v-if="column.before || column.after" class="unit">({{ column.before || column.after }})</span>
    </label>
    <select v-if="column.kind === 'choice'" :id="id" :value="value ?? ''" :disabled="fixed"
            :aria-describedby="described" @change="send($event.target.value)">
      <option value="" :disabled="!free">{{ free ? "not known" : "please choose" }}</option>
      <option v-for="(level, i) in column.levels" :key="i" :value="i">{{ level }}</option>
    </select>
    <input v-else :id="id" :type="column.kind === 'date' ? 'date' : 'number'" :value="value ?? ''"
           :disabled="fixed" step="any" :placeholder="fixed || !free ? '' : 'not known'"
           :aria-describedby="described" :aria-invalid="problem ? 'true' : 'false'"
           inputmode="decimal" @change="send($event.target.value)">
    <p v-if="problem" :id="id + '-help'" class="problem">{{ problem }}</p>
    <p v-else-if="fixed" :id="id + '-help'" class="help">{{ column.derived.length ? "Follows from " + column.derived.join(", ") + "." : "Stays, by the rules." }}</p>
    <p v-else-if="column.help" :id="id + '-help'" class="help">{{ column.help }}</p>
  </div>`,
  computed: {
    id() { return elementId(this.prefix, this.column); },
    free() { return !this.tried && !this.column.needed; },  // may be left out
    fixed() { return this.column.derived.length > 0 || (this.tried && this.column.lock === "keep"); },
    described() { return this.problem || this.fixed || this.column.help ? this.id + "-help" : null; },
  },
  methods: {
    send(text) {
      this.$emit("change", this.column.name, text === "" ? null
        : this.column.kind === "choice" ? Number(text) : text);
    },
  },
};
