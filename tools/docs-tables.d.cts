export declare function errorsPage(page: string): string;
export declare function optionsPage(page: string): string;
